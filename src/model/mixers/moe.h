// A mixture of experts: ops/moe.h's steps over the tokens of a pass, and an expert that sees every
// token beside them.
//
// Ops: linear, n_outputs, activated_linear, copy, and
//   beside(work), join()      work(ops) on a second stream where the backend has one, until join()
//   route(router, logits, experts, weights)
//   run_experts(spec, weights, x, scratch)                  scratch.out: a row a choice
//   sum_experts(spec, scratch, y)                           y = their weighted sums
//   sum_experts_add(spec, scratch, shared, residual, then)  the sums and the shared expert's output
//                                                           added to the stream; true: `then` too
//   linear_shared_add(w, x, shared, residual, then)         w x and the shared expert's likewise
#pragma once

#include <algorithm>

#include "model/mixers/mixer.h"
#include "model/mixers/mlp.h"
#include "model/router.h"

namespace replayssm {

// At least the bytes of E4M3 rows with their scales (ops/cuda/quantise_cuda.h).
constexpr int64_t quantised_row_bytes(int64_t rows, int64_t cols) {
  const int64_t padded = (rows + 3) / 4 * 4;
  const int64_t scales = ((cols + 127) / 128 + 3) / 4 * 4;
  return (padded * cols + 255) / 256 * 256 + padded * scales * int64_t{sizeof(float)};
}

// Outputs of a router are padded to a multiple of this: products of other numbers are slow.
constexpr int64_t kPaddedOutputs = 8;

struct MoeScratch {
  ops::Matrix logits;      // fp32, the router's | the shared expert's gate
  int32_t* experts;        // [tokens, top_k]
  int32_t* row;            // [tokens, top_k] where a token's row is among the experts' rows
  int32_t* first;          // [n_experts + 1]
  float* weights;          // [tokens, top_k]
  ops::Matrix latent;      // activation, to the experts and from them
  ops::Matrix latent_sum;  // fp32
  ops::Matrix x;           // by expert, as all that follow; may hold quantised rows instead
  ops::Matrix inner;
  ops::Matrix y;    // may hold quantised rows instead
  ops::Matrix out;  // fp32
  MlpScratch shared;
  ops::Matrix shared_out;  // fp32
};

inline MoeScratch scratch_of(MixerScratch& scratch, const MoeSpec& spec, DType activation,
                             int64_t n_tokens) {
  const int64_t n = n_tokens * spec.top_k, width = spec.expert_width();
  const auto integers = [&](int64_t count) {
    return static_cast<int32_t*>(scratch.take(count * int64_t{sizeof(int32_t)}));
  };
  const auto rows = [&](int64_t cols) {
    const int64_t bytes =
        std::max(n * cols * dtype_bytes(activation), quantised_row_bytes(n, cols));
    return ops::Matrix{scratch.take(bytes), activation, n, cols, cols};
  };
  MoeScratch out;
  const int64_t outputs = spec.n_experts + (spec.shared_gate ? 1 : 0);
  out.logits = scratch.matrix(DType::kF32, n_tokens,
                              (outputs + kPaddedOutputs - 1) / kPaddedOutputs * kPaddedOutputs);
  out.experts = integers(n);
  out.row = integers(n);
  out.first = integers(int64_t{spec.n_experts} + 1);
  out.weights = static_cast<float*>(scratch.take(n * int64_t{sizeof(float)}));
  out.latent = scratch.matrix(activation, n_tokens, spec.latent);
  out.latent_sum = scratch.matrix(DType::kF32, n_tokens, spec.latent);
  out.x = rows(width);
  out.inner = scratch.matrix(activation, n, inner_columns(spec.kind, spec.ff));
  out.y = rows(spec.ff);
  out.out = scratch.matrix(DType::kF32, n, width);
  if (spec.shared_ff == 0) return out;
  out.shared = mlp_scratch(scratch, spec.kind, spec.shared_ff, activation, n_tokens);
  out.shared_out = scratch.matrix(DType::kF32, n_tokens, spec.hidden);
  return out;
}

// What an expert that sees every token gives, fp32, times sigmoid(gate), [tokens, 1], if there is
// one; data null: no such expert.
struct SharedExpert {
  ops::ConstMatrix x = {};
  ops::ConstMatrix gate = {};
};

template <typename Ops>
bool run_mixer(Ops& ops, const MoeSpec& spec, const MoeWeights<typename Ops::Types>& weights,
               const MixerCall& call, MixerScratch& scratch) {
  MoeScratch s = scratch_of(scratch, spec, ops.activation(), call.in.rows);
  s.logits.cols = s.logits.stride = ops.n_outputs(weights.router);

  // First, so that its products choose their algorithms while nothing else runs.
  if (spec.shared_ff > 0) {
    ops.beside([&](auto& side) {
      side.linear(weights.shared.in, call.in, s.shared.inner);
      side.activated_linear(spec.kind, weights.shared.down, s.shared.inner, s.shared.y,
                            s.shared_out);
    });
  }
  ops.linear(weights.router, call.in, s.logits);
  if (spec.latent > 0) ops.linear(weights.latent_in, call.in, s.latent);
  ops.route(router_of(spec, weights.router_bias), s.logits.slice_cols(0, spec.n_experts), s.experts,
            s.weights);
  ops.run_experts(spec, weights.experts, spec.latent > 0 ? ops::ConstMatrix(s.latent) : call.in, s);
  SharedExpert shared;
  if (spec.shared_ff > 0) {
    ops.join();
    shared.x = s.shared_out;
    if (spec.shared_gate) shared.gate = s.logits.slice_cols(spec.n_experts, 1);
  }
  if (spec.latent == 0) return ops.sum_experts_add(spec, s, shared, call.residual, call.then);
  ops.sum_experts(spec, s, s.latent_sum);
  ops.copy(s.latent_sum, s.latent);
  return ops.linear_shared_add(weights.latent_out, s.latent, shared, call.residual, call.then);
}

}  // namespace replayssm
