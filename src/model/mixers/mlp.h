// An MLP: down(act(in(x))).
//
// Ops: linear, and
//   activated_linear(kind, w, inner, y_scratch, out)       out = w act(inner), through y_scratch or
//   activated_linear_add(kind, w, inner, y_scratch, residual)   not, as the backend likes
#pragma once

#include "model/mixers/mixer.h"

namespace replayssm {

inline int64_t inner_columns(MlpKind kind, int64_t ff) {
  return kind == MlpKind::kGatedSilu ? 2 * ff : ff;
}

struct MlpScratch {
  ops::Matrix inner;  // gate | up, or up
  ops::Matrix y;
};

inline MlpScratch mlp_scratch(MixerScratch& scratch, MlpKind kind, int64_t ff, DType activation,
                              int64_t rows) {
  MlpScratch out;
  out.inner = scratch.matrix(activation, rows, inner_columns(kind, ff));
  out.y = scratch.matrix(activation, rows, ff);
  return out;
}

inline MlpScratch scratch_of(MixerScratch& scratch, const MlpSpec& spec, DType activation,
                             int64_t n_tokens) {
  return mlp_scratch(scratch, spec.kind, spec.ff, activation, n_tokens);
}

template <typename Ops>
bool run_mixer(Ops& ops, const MlpSpec& spec, const MlpWeights<typename Ops::Types>& weights,
               const MixerCall& call, MixerScratch& scratch) {
  const MlpScratch s = scratch_of(scratch, spec, ops.activation(), call.in.rows);
  ops.linear(weights.in, call.in, s.inner);
  ops.activated_linear_add(spec.kind, weights.down, s.inner, s.y, call.residual);
  return false;
}

}  // namespace replayssm
