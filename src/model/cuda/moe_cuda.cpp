#include "model/cuda/moe_cuda.h"

#include <algorithm>

#include "core/error.h"
#include "model/router.h"
#include "ops/cuda/elementwise_cuda.h"
#include "ops/cuda/linear_cuda.h"
#include "ops/cuda/norm_cuda.h"
#include "ops/cuda/quantise_cuda.h"

namespace replayssm {
namespace {

namespace dev = ops::cuda;
using ops::cuda::WeightType;

int64_t inner_columns(MlpKind kind, int64_t ff) {
  return kind == MlpKind::kGatedSilu ? 2 * ff : ff;
}

ops::Matrix matrix(void* data, DType dtype, int64_t rows, int64_t cols) {
  return {data, dtype, rows, cols, cols};
}

void activate(const dev::CudaContext& context, MlpKind kind, int64_t ff, ops::Matrix inner,
              ops::Matrix y) {
  if (kind == MlpKind::kGatedSilu) {
    dev::silu_mul(context, inner.slice_cols(0, ff), inner.slice_cols(ff, ff), y);
  } else {
    dev::relu2(context, inner, y);
  }
}

// Bytes of rows in bf16 or as any expert_linear() takes them.
int64_t row_bytes(int64_t rows, int64_t cols) {
  return std::max(2 * rows * cols, dev::quantised_bytes(rows, cols));
}

// The scratch of a pass's mixer as matrices.
struct Mixer {
  const MoeSpec& spec;
  const MoeWeightsCuda& weights;
  const MoeScratchCuda& scratch;
  int32_t* first;
  bool products, others;
  int64_t n, chosen;
  ops::Matrix inner, out;

  Mixer(const MoeSpec& s, const MoeWeightsCuda& w, const MoeScratchCuda& at, int32_t* rows,
        int64_t n_tokens)
      : spec(s), weights(w), scratch(at), first(rows), n(n_tokens), chosen(n_tokens * s.top_k) {
    inner = matrix(at.inner, DType::kBF16, chosen, inner_columns(s.kind, s.ff));
    out = matrix(at.out, DType::kF32, chosen, s.expert_width());
  }

  // out[row] = expert's output, from the tokens' rows.
  void run_experts(const dev::CudaContext& context, ops::ConstMatrix from) const {
    if (weights.in.stack.type == WeightType::kBF16) {
      const ops::Matrix x = matrix(scratch.spread, DType::kBF16, chosen, spec.expert_width());
      if (others) dev::spread_rows(context, from, scratch.row, spec.top_k, x);
      if (products) dev::expert_linear(context, weights.in, first, x, inner);
    } else {
      const WeightType type = weights.in.stack.type;
      const dev::Quantised x = dev::quantised_at(scratch.spread, chosen, spec.expert_width());
      if (others) dev::quantise_spread(context, type, from, scratch.row, spec.top_k, x);
      if (products) dev::expert_linear(context, weights.in, first, x, inner);
    }
    if (weights.down.stack.type == WeightType::kBF16) {
      const ops::Matrix y = matrix(scratch.y, DType::kBF16, chosen, spec.ff);
      if (others) activate(context, spec.kind, spec.ff, inner, y);
      if (products) dev::expert_linear(context, weights.down, first, y, out);
    } else {
      const WeightType type = weights.down.stack.type;
      const dev::Quantised y = dev::quantised_at(scratch.y, chosen, spec.ff);
      if (others && spec.kind == MlpKind::kGatedSilu) {
        dev::quantise_silu_mul(context, type, inner.slice_cols(0, spec.ff),
                               inner.slice_cols(spec.ff, spec.ff), y);
      } else if (others) {
        dev::quantise_relu2(context, type, inner, y);
      }
      if (products) dev::expert_linear(context, weights.down, first, y, out);
    }
  }

  void run_shared(const dev::CudaContext& context, ops::ConstMatrix in, ops::Matrix to) const {
    const ops::Matrix shared_inner =
        matrix(scratch.shared_inner, DType::kBF16, n, inner_columns(spec.kind, spec.shared_ff));
    const ops::Matrix shared_y = matrix(scratch.shared_y, DType::kBF16, n, spec.shared_ff);
    if (products) dev::linear(context, weights.shared.in, in, shared_inner);
    if (dev::is_fp8(weights.shared.down.type)) {
      const auto activation =
          spec.kind == MlpKind::kGatedSilu ? dev::Activation::kSiluMul : dev::Activation::kRelu2;
      if (products) {
        dev::linear_activated(context, weights.shared.down, activation, shared_inner, to);
      }
      return;
    }
    if (others) activate(context, spec.kind, spec.shared_ff, shared_inner, shared_y);
    if (products) dev::linear(context, weights.shared.down, shared_y, to);
  }
};

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
  out.spread = arena.take("scratch", row_bytes(chosen, width));
  out.inner = halves(chosen * inner_columns(spec.kind, spec.ff));
  out.y = arena.take("scratch", row_bytes(chosen, spec.ff));
  out.out = floats(chosen * width);
  out.latent = halves(max_tokens * spec.latent);
  out.latent_sum = floats(max_tokens * spec.latent);
  out.shared_inner = halves(max_tokens * inner_columns(spec.kind, spec.shared_ff));
  out.shared_y = halves(max_tokens * spec.shared_ff);
  if (spec.shared_ff > 0) out.shared_out = floats(max_tokens * spec.hidden);
  return out;
}

void run_moe(const dev::CudaContext& context, BranchCuda& branch, const MoeSpec& spec,
             const MoeWeightsCuda& weights, const MoeScratchCuda& scratch, int32_t* first,
             ops::ConstMatrix in, ops::Matrix residual, const dev::NormedOutput& then,
             bool products, bool others) {
  const int64_t n = in.rows;
  Mixer mixer(spec, weights, scratch, first, n);
  mixer.products = products;
  mixer.others = others;
  const ops::Matrix logits = matrix(scratch.logits, DType::kF32, n, weights.router.n_out);
  const ops::Matrix latent = matrix(scratch.latent, DType::kBF16, n, spec.latent);
  const ops::Matrix latent_sum = matrix(scratch.latent_sum, DType::kF32, n, spec.latent);
  const ops::Matrix shared_out = matrix(scratch.shared_out, DType::kF32, n, spec.hidden);

  // First, so that its products choose their algorithms while nothing else runs.
  if (spec.shared_ff > 0) {
    branch.fork();
    mixer.run_shared(branch.context(), in, shared_out);
  }
  if (products) {
    dev::linear(context, weights.router, in, logits);
    if (spec.latent > 0) dev::linear(context, weights.latent_in, in, latent);
  }
  if (others) {
    dev::route(context, router_of(spec, weights.router_bias), logits.slice_cols(0, spec.n_experts),
               scratch.experts, scratch.weights);
    dev::sort_by_expert(context, scratch.experts, n, spec.top_k, spec.n_experts, first,
                        scratch.row);
  }
  mixer.run_experts(context, spec.latent > 0 ? ops::ConstMatrix(latent) : in);
  dev::SharedOutput shared;
  if (spec.shared_ff > 0) {
    branch.join();
    shared.x = shared_out;
    if (spec.shared_gate) shared.gate = logits.slice_cols(spec.n_experts, 1);
  }
  if (spec.latent == 0) {
    if (!others) return;
    dev::sum_rows(context, mixer.out, scratch.row, scratch.weights, spec.top_k, residual,
                  /*accumulate=*/true, shared, then);
    return;
  }
  REPLAYSSM_CHECK(!spec.shared_gate, "a gated shared expert beside latent ones");
  if (others) {
    dev::sum_rows(context, mixer.out, scratch.row, scratch.weights, spec.top_k, latent_sum);
    dev::copy(context, latent_sum, latent);
  }
  if (products) {
    dev::linear(context, weights.latent_out, latent, residual, /*accumulate=*/true);
  }
  if (!others) return;
  const bool add = spec.shared_ff > 0, normed = then.y.data != nullptr;
  if (add && normed) {
    dev::add_rms_norm(context, residual, shared_out, then.weight, then.eps, then.y);
  } else if (add) {
    dev::residual_add(context, residual, shared_out);
  } else if (normed) {
    dev::rms_norm(context, residual, then.weight, then.eps, then.y);
  }
}

}  // namespace replayssm
