#include "bench/simulate/simulate.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/cpu/types_cpu.h"
#include "model/parameters.h"

namespace replayssm::bench {
namespace {

int64_t split(int64_t n, int32_t n_gpus) { return (n + n_gpus - 1) / n_gpus; }

class Simulator {
 public:
  Simulator(const ModelSpec& spec, const SimulatedMachine& machine, const SimulatedStep& step)
      : spec_(spec),
        machine_(machine),
        step_(step),
        n_(machine.n_gpus),
        tokens_(step.batch * step.layer->window) {}

  StepParts run() {
    for (const auto& layer : spec_.layers) {
      for (const auto& mixer : layer.mixers) {
        std::visit([&](const auto& kind) { add(kind); }, mixer);
        all_reduce();
        small_kernel(14 * spec_.hidden);  // the residual's sum and the next norm
      }
    }
    product(tokens_, spec_.hidden, split(spec_.vocab, n_), false);
    small_kernel(8 * spec_.hidden);            // embedding, first norm
    small_kernel(4 * split(spec_.vocab, n_));  // sampling
    parts_.weights = parts_.weights_floor / machine_.product_share;
    parts_.kv = parts_.kv_floor / machine_.attention_share;
    return parts_;
  }

 private:
  void add(const Mamba2Spec& m) {
    const int64_t heads = heads_of(m.n_heads), inner = heads * m.head_dim;
    const int64_t groups = split(m.n_groups, n_);
    product(tokens_, spec_.hidden, 2 * inner + 2 * groups * m.state_dim + heads, true);
    product(tokens_, inner, spec_.hidden, true);
    parts_.state += step_.layer->seconds(step_.batch, static_cast<int32_t>(heads));
    small_kernel(4 * (inner + 2 * groups * m.state_dim));  // conv
    small_kernel(6 * inner);                               // gated norm
  }
  void add(const GdnSpec& g) {
    const int64_t heads = heads_of(g.n_value_heads), key_heads = split(g.n_key_heads, n_);
    product(tokens_, spec_.hidden, 2 * key_heads * g.key_dim + 2 * heads * g.value_dim, true);
    product(tokens_, spec_.hidden, 2 * heads, false);
    product(tokens_, heads * g.value_dim, spec_.hidden, true);
    parts_.state += step_.layer->seconds(step_.batch, static_cast<int32_t>(heads));
    small_kernel(4 * (2 * key_heads * g.key_dim + heads * g.value_dim));
    small_kernel(6 * heads * g.value_dim);
  }
  void add(const AttentionSpec& a) {
    const int64_t q = heads_of(a.n_heads) * a.head_dim, kv = split(a.n_kv_heads, n_) * a.head_dim;
    product(tokens_, spec_.hidden, q * (a.output_gate ? 2 : 1) + 2 * kv, true);
    product(tokens_, q, spec_.hidden, true);
    const auto pairs = static_cast<double>(step_.batch * step_.context);
    const double read = pairs * 2 * static_cast<double>(kv) * 2 / machine_.read_rate;
    const double work = pairs * 4 * static_cast<double>(q * step_.layer->window);
    parts_.kv_floor += std::max(read, work / machine_.product_rate);
    small_kernel(4 * (q + 2 * kv));  // norms, RoPE, append
    small_kernel(6 * q);             // merge and gate
  }
  void add(const MlpSpec& m) { mlp(m.kind, spec_.hidden, split(m.ff, n_)); }
  void add(const MoeSpec& m) {
    product(tokens_, m.hidden, m.n_experts, false);
    if (m.latent > 0) {
      product(tokens_, m.hidden, m.latent, true);
      product(tokens_, m.latent, m.hidden, true);
    }
    // How many experts a step meets if its tokens choose evenly.
    const double share = static_cast<double>(m.top_k) / m.n_experts;
    const double met = m.n_experts * (1 - std::pow(1 - share, static_cast<double>(tokens_)));
    const auto weights = static_cast<double>((m.kind == MlpKind::kGatedSilu ? 3 : 2) *
                                             m.expert_width() * split(m.ff, n_));
    const double read = met * weights * (step_.fp8 ? 1 : 2) / machine_.read_rate;
    const double work = 2 * static_cast<double>(tokens_ * m.top_k) * weights;
    parts_.weights_floor += std::max(read, work / rate(step_.fp8));
    if (m.shared_ff > 0) mlp(m.kind, m.hidden, split(m.shared_ff, n_));
    small_kernel(4 * m.n_experts);                 // choice
    small_kernel(4 * m.top_k * m.expert_width());  // rows to the experts
    small_kernel(activation_bytes(m.kind, m.top_k * split(m.ff, n_)));
    small_kernel(4 * m.top_k * m.expert_width());  // and their sum
  }

  int64_t heads_of(int32_t n_heads) const {
    if (n_heads % n_ != 0) fail("--gpus ", n_, ": does not divide ", n_heads, " heads of a layer");
    return n_heads / n_;
  }
  double rate(bool fp8) const { return machine_.product_rate * (fp8 ? 2 : 1); }

  void product(int64_t rows, int64_t n_in, int64_t n_out, bool projection) {
    const bool fp8 = projection && step_.fp8;
    const auto weights = static_cast<double>(n_in * n_out);
    const double read = weights * (fp8 ? 1 : 2) / machine_.read_rate;
    const double work = 2 * static_cast<double>(rows) * weights / rate(fp8);
    parts_.weights_floor += std::max(read, work);
  }
  void mlp(MlpKind kind, int64_t width, int64_t ff) {
    product(tokens_, width, kind == MlpKind::kGatedSilu ? 2 * ff : ff, true);
    product(tokens_, ff, width, true);
    small_kernel(activation_bytes(kind, ff));
  }
  static int64_t activation_bytes(MlpKind kind, int64_t ff) {
    return (kind == MlpKind::kGatedSilu ? 6 : 4) * ff;
  }
  void small_kernel(int64_t bytes_a_token) {
    const auto bytes = static_cast<double>(tokens_ * bytes_a_token);
    parts_.rest += machine_.launch + bytes / (machine_.read_rate * machine_.small_share);
  }
  void all_reduce() {
    if (n_ == 1) return;
    const auto bytes = static_cast<double>(tokens_ * spec_.hidden * 2);
    parts_.reduce += machine_.reduce_latency + 2.0 * (n_ - 1) / n_ * bytes / machine_.link_rate;
  }

  const ModelSpec& spec_;
  const SimulatedMachine& machine_;
  const SimulatedStep& step_;
  int32_t n_;
  int64_t tokens_;
  StepParts parts_;
};

// Key and value heads that every GPU holds, over an even share of them.
double kv_copies(const ModelSpec& spec, int32_t n_gpus) {
  for (const auto& layer : spec.layers) {
    for (const auto& mixer : layer.mixers) {
      const auto* a = std::get_if<AttentionSpec>(&mixer);
      if (a == nullptr) continue;
      return static_cast<double>(split(a->n_kv_heads, n_gpus) * n_gpus) / a->n_kv_heads;
    }
  }
  return 1.0;
}

}  // namespace

StepParts simulate_step(const ModelSpec& spec, const SimulatedMachine& machine,
                        const SimulatedStep& step) {
  return Simulator(spec, machine, step).run();
}

double weights_a_gpu(const ModelSpec& spec, const SimulatedMachine& machine, bool fp8) {
  return static_cast<double>(weight_bytes(count_parameters(spec), fp8)) / machine.n_gpus;
}

double sequence_a_gpu(const ModelSpec& spec, const SimulatedMachine& machine,
                      const SimulatedStep& step) {
  const LayerTime& layer = *step.layer;
  ModelOptions options;
  options.max_window = layer.window;
  options.checkpoint = layer.dtype;
  const auto model = Model::of({spec, {}}, DType::kBF16, options);
  const ModelMemory m = memory_of(plan_layers_cpu(*model, best_isa()).sizes);
  const int64_t states = layer.way == StateMethod::kSnapshots ? layer.window : 1;
  const bool no_ring = layer.way == StateMethod::kPlain || layer.way == StateMethod::kSnapshots;
  const int64_t ring = no_ring ? 0 : m.ring_slot;
  const int64_t pages = ops::pages_for(step.context + layer.window);
  const auto recurrent = static_cast<double>(states * m.checkpoint_slot + ring + m.conv_slot);
  return (recurrent + static_cast<double>(pages) * static_cast<double>(m.kv_page) *
                          kv_copies(spec, machine.n_gpus)) /
         machine.n_gpus;
}

}  // namespace replayssm::bench
