#include "bench/serve/cost_model.h"

#include <algorithm>
#include <cmath>

#include "bench/common/card.h"
#include "bench/common/state_bytes.h"

namespace replayssm::bench {
namespace {

// What the prediction takes: rates of products at 64 to 1,024 rows, of the state kernels by way and
// type, of attention, and a launch inside a graph.
constexpr double kProductBandwidth = 3.9e12, kProductFlops = 600e12;
constexpr double kKvBandwidth = 3.6e12;
constexpr double kElementwiseBandwidth = 3.0e12;
constexpr double kLaunch = 1.8e-6;
constexpr double kMs = 1e3;

// Of the floor, what the state kernels of bench/kernels reach at batch 256.
double state_rate(const StepWorkload& work) {
  if (work.state == StateMethod::kPlain) return 0.87;
  if (work.state != StateMethod::kReplay) return 0.8;
  const bool window = work.window > 1;
  switch (work.checkpoint) {
    case DType::kF32:
      return window ? 0.77 : 0.83;
    case DType::kI8:
      return window ? 0.45 : 0.62;
    default:
      return window ? 0.74 : 0.88;
  }
}

class Adder {
 public:
  Adder(const ModelSpec& spec, const StepWorkload& work) : spec_(spec), work_(work) {
    tokens_ = static_cast<double>(work.rows) * work.window;
  }

  void add(const Mamba2Spec& s) {
    const auto inner = static_cast<double>(s.inner());
    const auto channels = static_cast<double>(s.conv_channels());
    linear(spec_.hidden, s.inner() + s.conv_channels());
    linear(spec_.hidden, s.n_heads);
    recurrence(Family::kMamba2, s.n_heads, s.n_groups, s.head_dim, s.state_dim);
    elementwise(2 * (3 * channels + 3 * inner), 2);
    linear(s.inner(), spec_.hidden);
  }

  void add(const GdnSpec& s) {
    const auto values = static_cast<double>(s.value_size());
    linear(spec_.hidden, s.conv_channels() + s.value_size());
    linear(spec_.hidden, 2 * int64_t{s.n_value_heads}, false);
    recurrence(Family::kGdn, s.n_value_heads, s.n_key_heads, s.value_dim, s.key_dim);
    elementwise(2 * (3 * static_cast<double>(s.conv_channels()) + 3 * values), 2);
    linear(s.value_size(), spec_.hidden);
  }

  void add(const AttentionSpec& s) {
    const double position = 4.0 * static_cast<double>(s.kv_size());  // k and v, bf16
    linear(spec_.hidden, s.q_size() * (s.output_gate ? 2 : 1) + 2 * s.kv_size());
    const auto rows = static_cast<double>(work_.rows);
    const double bytes = rows * position * (work_.context + work_.window);
    const double flops = 4 * tokens_ * static_cast<double>(s.q_size()) * work_.context;
    cost_.kv_bytes += bytes;
    cost_.floor.kv += std::max(bytes / kReadBytesPerSecond, flops / kFlopsPerSecond) * kMs;
    cost_.predicted.kv +=
        (std::max(bytes / kKvBandwidth, flops / kProductFlops) + 2 * kLaunch) * kMs;
    if (s.output_gate) elementwise(6 * static_cast<double>(s.q_size()), 1);
    linear(s.q_size(), spec_.hidden);
  }

  void add(const MlpSpec& s) {
    const int64_t in = s.kind == MlpKind::kGatedSilu ? 2 * s.ff : s.ff;
    linear(spec_.hidden, in);
    elementwise(2 * static_cast<double>(in + s.ff), 1);
    linear(s.ff, spec_.hidden);
  }

  void add(const MoeSpec& s) {
    const double chosen = tokens_ * s.top_k, n_experts = s.n_experts;
    const double read = work_.experts_read > 0
                            ? work_.experts_read
                            : n_experts * (1 - std::pow(1 - s.top_k / n_experts, tokens_));
    const int64_t in = s.kind == MlpKind::kGatedSilu ? 2 * s.ff : s.ff;
    const int64_t width = s.expert_width();
    linear(spec_.hidden, s.n_experts, false);
    if (s.latent > 0) linear(spec_.hidden, s.latent);
    product(static_cast<double>(width * in), read, chosen, work_.fp8);
    product(static_cast<double>(width * s.ff), read, chosen, work_.fp8);
    elementwise(2.0 * s.top_k * static_cast<double>(3 * width + in + s.ff), 6);
    if (s.latent > 0) linear(s.latent, spec_.hidden);
    if (s.shared_ff > 0) add(MlpSpec{s.kind, s.shared_ff});
    if (s.shared_gate) elementwise(8 * static_cast<double>(spec_.hidden), 2);
  }

  void norm() { elementwise(6 * static_cast<double>(spec_.hidden), 1); }
  void head() {
    norm();
    linear(spec_.hidden, spec_.vocab, false);
    elementwise(4 * static_cast<double>(spec_.vocab), 3);
  }

  const CostModel& cost() const { return cost_; }

 private:
  void linear(int64_t n_in, int64_t n_out) { linear(n_in, n_out, work_.fp8); }
  void linear(int64_t n_in, int64_t n_out, bool fp8) {
    product(static_cast<double>(n_in) * static_cast<double>(n_out), 1, tokens_, fp8);
  }
  // `copies` weights of so many elements are read, and `rows` rows in all pass through one each.
  void product(double elements, double copies, double rows, bool fp8) {
    const double bytes = elements * copies * (fp8 ? 1 : 2);
    const double flops = elements * rows * (fp8 ? 1 : 2);
    cost_.weight_bytes += bytes;
    cost_.floor.weights += std::max(bytes / kReadBytesPerSecond, flops / kFlopsPerSecond) * kMs;
    cost_.predicted.weights +=
        (std::max(bytes / kProductBandwidth, flops / kProductFlops) + kLaunch) * kMs;
  }

  void recurrence(Family family, int32_t n_heads, int32_t n_key_heads, int32_t value_dim,
                  int32_t key_dim) {
    Problem problem;
    problem.family = family;
    problem.n_heads = n_heads;
    problem.n_key_heads = n_key_heads;
    problem.value_dim = value_dim;
    problem.key_dim = key_dim;
    problem.grid.interval = work_.interval;
    problem.activation = DType::kBF16;
    problem.ring = DType::kBF16;  // or fp16
    problem.checkpoint = work_.checkpoint;
    const double bytes = static_cast<double>(work_.rows) *
                         step_bytes(problem, work_.state, work_.window, work_.accepted);
    cost_.state_bytes += bytes;
    cost_.floor.state += bytes / kReadBytesPerSecond * kMs;
    cost_.predicted.state += (bytes / kReadBytesPerSecond / state_rate(work_) + kLaunch) * kMs;
  }

  // Bytes a token.
  void elementwise(double bytes, int launches) {
    cost_.predicted.rest += (tokens_ * bytes / kElementwiseBandwidth + launches * kLaunch) * kMs;
  }

  const ModelSpec& spec_;
  const StepWorkload& work_;
  double tokens_ = 0;
  CostModel cost_;
};

}  // namespace

CostModel cost_model(const ModelSpec& spec, const StepWorkload& work) {
  Adder adder(spec, work);
  for (const LayerSpec& layer : spec.layers) {
    for (const MixerSpec& mixer : layer.mixers) {
      adder.norm();
      std::visit([&](const auto& s) { adder.add(s); }, mixer);
    }
  }
  adder.head();
  return adder.cost();
}

}  // namespace replayssm::bench
