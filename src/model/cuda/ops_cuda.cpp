#include "model/cuda/ops_cuda.h"

#include "core/error.h"
#include "ops/cuda/quantise_cuda.h"
#include "ops/cuda/rope_cuda.h"

namespace replayssm {
namespace {

namespace dev = ops::cuda;
using ops::cuda::WeightType;

constexpr int32_t kLongestWindow = 16;
// Up to here a step may fetch its rows while the kernel before it ends: one wave or little more.
constexpr int32_t kEarlyRows = 64;

void check_experts(const MoeSpec& moe) {
  if (moe.expert_width() % 32 == 0 && moe.ff % 32 == 0) return;
  fail("the experts cannot run on CUDA: ", moe.expert_width(), " x ", moe.ff,
       " are no multiples of 32");
}

void activate(const dev::CudaContext& context, MlpKind kind, ops::Matrix inner, ops::Matrix y) {
  switch (kind) {
    case MlpKind::kGatedSilu:
      dev::silu_mul(context, inner.slice_cols(0, y.cols), inner.slice_cols(y.cols, y.cols), y);
      break;
    case MlpKind::kRelu2:
      dev::relu2(context, inner, y);
      break;
  }
}

}  // namespace

CudaLayers plan_layers_cuda(const Model& model) {
  if (model.options().max_window > kLongestWindow) {
    fail("the largest step is ", model.options().max_window, " tokens; on CUDA it must lie in [1, ",
         kLongestWindow, "]");
  }
  if (model.spec().mtp) {
    fail(
        "--draft mtp: CUDA does not run multi-token-prediction heads yet; draft with ngram or a "
        "model folder, or use --device cpu");
  }
  if (model.activation() != DType::kBF16) {
    fail("CUDA takes models stored in bf16; activations of this one are ",
         dtype_name(model.activation()));
  }
  for (const RecurrentShape& layer : model.recurrent()) {
    const DType ring = layer.problem.family == Family::kMamba2 ? DType::kBF16 : DType::kF16;
    if (model.ring() == ring) continue;
    fail("--ring-dtype: on CUDA it is ", dtype_name(ring), " for ", model.spec().model_type);
  }
  for (const LayerSpec& layer : model.spec().layers) {
    for (const MixerSpec& mixer : layer.mixers) {
      if (const auto* moe = std::get_if<MoeSpec>(&mixer)) check_experts(*moe);
    }
  }
  const auto plan = [](auto problem) {
    if constexpr (std::is_same_v<decltype(problem), Problem>) {
      const int32_t interval = problem.grid.interval, rows = problem.grid.ring_rows;
      problem.grid.ring_rows = (rows + interval - 1) / interval * interval;
    }
    return plan_cuda(problem);
  };
  return plan_layers<CudaTypes>(model, plan);
}

EngineCuda::EngineCuda(const Model& model_in, const CudaLayers& layers_in, Arena& arena)
    : model(model_in), layers(layers_in) {
  if (has_mixer<MoeSpec>(model.spec())) {
    branch_workspace_ = arena.take("scratch", dev::CudaContext::kWorkspaceBytes);
  }
  for (const RopeShape& rope : model.ropes()) {
    frequencies.push_back(arena.take_as<double>("scratch", rope.rotary_dims / 2));
  }
  saturated = arena.take_as<int64_t>("scratch", 1);
}

void EngineCuda::prepare(const dev::CudaContext& context) {
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const RopeShape& rope = model.ropes()[i];
    dev::rope_frequencies(context, rope.rotary_dims, rope.theta, frequencies[i], rope.scaling);
  }
  if (branch_workspace_ != nullptr) {
    branch = std::make_unique<BranchCuda>(context, branch_workspace_);
  }
  check_cuda(cudaMemset(saturated, 0, sizeof *saturated), "cudaMemset");
}

int64_t EngineCuda::n_saturated() const {
  int64_t out = 0;
  check_cuda(cudaMemcpy(&out, saturated, sizeof out, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return out;
}

void OpsCuda::rope_angles(size_t rope, float* table) const {
  const RopeShape& shape = engine_.model.ropes()[rope];
  dev::rope_angles(context(), engine_.frequencies[rope], shape.rotary_dims, pass_.positions,
                   pass_.n_tokens, table, shape.scaling.attention_factor);
}

void OpsCuda::conv(size_t layer, const float* weight, const float* bias, ops::ConstMatrix x,
                   ops::Matrix y) const {
  ConvArgs args;
  args.rows = pass_.rows;
  args.n_rows = pass_.n_step + pass_.n_sweep;
  args.in = {x.data, x.stride};
  args.out = {y.data, y.stride};
  args.weight = weight;
  args.bias = bias;
  args.ring = conv_ring(engine_.layers.sizes.recurrent[layer], pool_.recurrent[layer]);
  engine_.layers.recurrent[layer].conv->run(args, pass_.n_tokens, context().stream());
}

void OpsCuda::recurrence(size_t layer, StepArgs args) const {
  const CudaPlan& plan = *engine_.layers.recurrent[layer].plan;
  place_state(engine_.layers.sizes.recurrent[layer], pool_.recurrent[layer], args);
  args.n_saturated = engine_.saturated;
  args.rows = pass_.rows;
  args.n_rows = pass_.n_step;
  // The conv before it writes nothing that a step fetches early.
  plan.step(args, context().stream(),
            {.early = pass_.n_step <= kEarlyRows, .single = pass_.single});
  args.rows = pass_.rows + pass_.n_step;
  args.n_rows = pass_.n_sweep;
  if (pass_.n_sweep > 0) plan.sweep(args, context().stream());
}

void OpsCuda::attend(size_t layer, const AttentionPrologue& prologue, float scale, ops::Heads q,
                     ops::Heads k, ops::Heads v, ops::Heads y) const {
  dev::AttentionRowsCuda rows;
  rows.start = pass_.start;
  rows.n_tokens = pass_.row_tokens;
  rows.token = pass_.first_token;
  rows.pages = pass_.pages;
  rows.pages_stride = pass_.pages_stride;
  rows.n_rows = pass_.n_step + pass_.n_sweep;
  rows.max_tokens = pass_.longest;
  rows.max_positions = pass_.max_positions;
  dev::QkPrologue before;
  before.q_norm = prologue.q_norm;
  before.k_norm = prologue.k_norm;
  before.eps = prologue.eps;
  if (prologue.rope >= 0) {
    before.rope_table = prologue.angles;
    before.rotary_dims = engine_.model.ropes()[static_cast<size_t>(prologue.rope)].rotary_dims;
  }
  const dev::KvShapeCuda& shape = engine_.layers.kv[layer];
  dev::qk_prologue_append(context(), before, shape, pool_.kv[layer], rows, q, k, v);
  dev::attention(context(), shape, pool_.kv[layer], rows, scale, q, y);
}

void OpsCuda::activated(MlpKind kind, const dev::LinearCuda& w, ops::Matrix inner, ops::Matrix y,
                        ops::Matrix out, bool accumulate) const {
  if (dev::is_fp8(w.type)) {
    const auto activation =
        kind == MlpKind::kGatedSilu ? dev::Activation::kSiluMul : dev::Activation::kRelu2;
    dev::linear_activated(context(), w, activation, inner, out, accumulate);
    return;
  }
  activate(context(), kind, inner, y);
  dev::linear(context(), w, y, out, accumulate);
}

void OpsCuda::run_experts(const MoeSpec& spec, const CudaTypes::Experts& experts,
                          ops::ConstMatrix from, const MoeScratch& s) const {
  const int64_t chosen = from.rows * spec.top_k;
  dev::sort_by_expert(context(), s.experts, from.rows, spec.top_k, spec.n_experts, s.first, s.row);
  const WeightType in_type = experts.in.stack.type, down_type = experts.down.stack.type;
  if (in_type == WeightType::kBF16) {
    dev::spread_rows(context(), from, s.row, spec.top_k, s.x);
    dev::expert_linear(context(), experts.in, s.first, s.x, s.inner);
  } else {
    const dev::Quantised x = dev::quantised_at(s.x.data, chosen, from.cols);
    dev::quantise_spread(context(), in_type, from, s.row, spec.top_k, x);
    dev::expert_linear(context(), experts.in, s.first, x, s.inner);
  }
  if (down_type == WeightType::kBF16) {
    activate(context(), spec.kind, s.inner, s.y);
    dev::expert_linear(context(), experts.down, s.first, s.y, s.out);
    return;
  }
  const dev::Quantised y = dev::quantised_at(s.y.data, chosen, spec.ff);
  if (spec.kind == MlpKind::kGatedSilu) {
    dev::quantise_silu_mul(context(), down_type, s.inner.slice_cols(0, spec.ff),
                           s.inner.slice_cols(spec.ff, spec.ff), y);
  } else {
    dev::quantise_relu2(context(), down_type, s.inner, y);
  }
  dev::expert_linear(context(), experts.down, s.first, y, s.out);
}

bool OpsCuda::sum_experts_add(const MoeSpec& spec, const MoeScratch& scratch,
                              const SharedExpert& shared, ops::Matrix residual,
                              const NextNorm& then) const {
  dev::sum_rows(context(), scratch.out, scratch.row, scratch.weights, spec.top_k, residual,
                /*accumulate=*/true, {shared.x, shared.gate}, {then.weight, then.eps, then.y});
  return then.y.data != nullptr;
}

bool OpsCuda::linear_shared_add(const dev::LinearCuda& w, ops::ConstMatrix x,
                                const SharedExpert& shared, ops::Matrix residual,
                                const NextNorm& then) const {
  REPLAYSSM_CHECK(shared.gate.data == nullptr, "a gated shared expert beside latent ones");
  linear_add(w, x, residual);
  const bool add = shared.x.data != nullptr, normed = then.y.data != nullptr;
  if (add && normed) {
    dev::add_rms_norm(context(), residual, shared.x, then.weight, then.eps, then.y);
  } else if (add) {
    dev::residual_add(context(), residual, shared.x);
  } else if (normed) {
    rms_norm(residual, then.weight, then.eps, then.y);
  }
  return normed;
}

}  // namespace replayssm
