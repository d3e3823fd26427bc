#include "model/cuda/moe_cuda.h"

#include "ops/cuda/elementwise_cuda.h"
#include "ops/cuda/linear_cuda.h"

namespace replayssm {
namespace {

namespace dev = ops::cuda;

int64_t inner_columns(MlpKind kind, int64_t ff) {
  return kind == MlpKind::kGatedSilu ? 2 * ff : ff;
}

ops::Matrix matrix(void* data, DType dtype, int64_t rows, int64_t cols) {
  return {data, dtype, rows, cols, cols};
}

ops::Router router_of(const MoeSpec& spec, const MoeWeightsCuda& weights) {
  ops::Router router;
  router.score = spec.score;
  router.n_experts = spec.n_experts;
  router.top_k = spec.top_k;
  router.n_groups = spec.n_groups;
  router.top_groups = spec.top_groups;
  router.renormalise = spec.renormalise;
  router.scale = spec.scale;
  router.bias = weights.router_bias;
  return router;
}

void activate(const dev::CudaContext& context, MlpKind kind, int64_t ff, ops::Matrix inner,
              ops::Matrix y) {
  if (kind == MlpKind::kGatedSilu) {
    dev::silu_mul(context, inner.slice_cols(0, ff), inner.slice_cols(ff, ff), y);
  } else {
    dev::relu2(context, inner, y);
  }
}

}  // namespace

MoeScratchCuda MoeScratchCuda::take(const MoeSpec& spec, int64_t max_tokens, DeviceArena& arena) {
  const int64_t chosen = max_tokens * spec.top_k, width = spec.expert_width();
  const auto floats = [&](int64_t n) { return arena.take_as<float>("scratch", n); };
  const auto ints = [&](int64_t n) { return arena.take_as<int32_t>("scratch", n); };
  const auto halves = [&](int64_t n) { return arena.take("scratch", 2 * n); };
  MoeScratchCuda out;
  out.logits = floats(max_tokens * (spec.n_experts + kPaddedOutputs));
  out.weights = floats(chosen);
  out.experts = ints(chosen);
  out.row = ints(chosen);
  out.spread = halves(chosen * width);
  out.inner = halves(chosen * inner_columns(spec.kind, spec.ff));
  out.y = halves(chosen * spec.ff);
  out.out = floats(chosen * width);
  out.latent = halves(max_tokens * spec.latent);
  out.latent_sum = floats(max_tokens * spec.latent);
  out.shared_inner = halves(max_tokens * inner_columns(spec.kind, spec.shared_ff));
  out.shared_y = halves(max_tokens * spec.shared_ff);
  if (spec.shared_gate) out.shared_out = floats(max_tokens * spec.hidden);
  return out;
}

void run_moe(const dev::CudaContext& context, const MoeSpec& spec, const MoeWeightsCuda& weights,
             const MoeScratchCuda& scratch, int32_t* first, ops::ConstMatrix in,
             ops::Matrix residual, bool products, bool others) {
  const int64_t n = in.rows, chosen = n * spec.top_k, width = spec.expert_width();
  const ops::Matrix logits = matrix(scratch.logits, DType::kF32, n, weights.router.n_out);
  const ops::Matrix spread = matrix(scratch.spread, DType::kBF16, chosen, width);
  const ops::Matrix inner =
      matrix(scratch.inner, DType::kBF16, chosen, inner_columns(spec.kind, spec.ff));
  const ops::Matrix y = matrix(scratch.y, DType::kBF16, chosen, spec.ff);
  const ops::Matrix out = matrix(scratch.out, DType::kF32, chosen, width);
  const ops::Matrix latent = matrix(scratch.latent, DType::kBF16, n, spec.latent);
  const ops::Matrix latent_sum = matrix(scratch.latent_sum, DType::kF32, n, spec.latent);

  if (products) {
    dev::linear(context, weights.router, in, logits);
    if (spec.latent > 0) dev::linear(context, weights.latent_in, in, latent);
  }
  if (others) {
    dev::route(context, router_of(spec, weights), logits.slice_cols(0, spec.n_experts),
               scratch.experts, scratch.weights);
    dev::sort_by_expert(context, scratch.experts, n, spec.top_k, spec.n_experts, first,
                        scratch.row);
    const ops::ConstMatrix from = spec.latent > 0 ? ops::ConstMatrix(latent) : in;
    dev::spread_rows(context, from, scratch.row, spec.top_k, spread);
  }
  if (products) dev::expert_linear(context, weights.in, first, spread, inner);
  if (others) activate(context, spec.kind, spec.ff, inner, y);
  if (products) dev::expert_linear(context, weights.down, first, y, out);
  if (others && spec.latent == 0) {
    dev::sum_rows(context, out, scratch.row, scratch.weights, spec.top_k, residual,
                  /*accumulate=*/true);
  } else if (others) {
    dev::sum_rows(context, out, scratch.row, scratch.weights, spec.top_k, latent_sum);
    dev::copy(context, latent_sum, latent);
  }
  if (products && spec.latent > 0) {
    dev::linear(context, weights.latent_out, latent, residual, /*accumulate=*/true);
  }
  if (spec.shared_ff == 0) return;
  const ops::Matrix shared_inner =
      matrix(scratch.shared_inner, DType::kBF16, n, inner_columns(spec.kind, spec.shared_ff));
  const ops::Matrix shared_y = matrix(scratch.shared_y, DType::kBF16, n, spec.shared_ff);
  if (products) dev::linear(context, weights.shared.in, in, shared_inner);
  if (others) activate(context, spec.kind, spec.shared_ff, shared_inner, shared_y);
  if (!spec.shared_gate) {
    if (products) {
      dev::linear(context, weights.shared.down, shared_y, residual, /*accumulate=*/true);
    }
    return;
  }
  const ops::Matrix shared_out = matrix(scratch.shared_out, DType::kF32, n, spec.hidden);
  if (products) dev::linear(context, weights.shared.down, shared_y, shared_out);
  if (others) {
    dev::add_gated(context, logits.slice_cols(spec.n_experts, 1), shared_out, residual);
  }
}

}  // namespace replayssm
