// Mamba-2: in_proj -> z | x B C | dt; short conv over x B C; the recurrence; gate, then group norm;
// out_proj.
//
// Ops: as mixers/gdn.h.
#pragma once

#include "model/mixers/mixer.h"
#include "replay/step.h"

namespace replayssm {

struct Mamba2Scratch {
  ops::Matrix zx;    // z [inner] | x B C, before the conv
  ops::Matrix dt;    // fp32
  ops::Matrix conv;  // x [inner] | B [groups, state] | C [groups, state]
  ops::Matrix y;
};

inline Mamba2Scratch scratch_of(MixerScratch& scratch, const Mamba2Spec& spec, DType activation,
                                int64_t n_tokens) {
  Mamba2Scratch out;
  out.zx = scratch.matrix(activation, n_tokens, spec.inner() + spec.conv_channels());
  out.dt = scratch.matrix(DType::kF32, n_tokens, spec.n_heads);
  out.conv = scratch.matrix(activation, n_tokens, spec.conv_channels());
  out.y = scratch.matrix(activation, n_tokens, spec.inner());
  return out;
}

template <typename Ops>
bool run_mixer(Ops& ops, const Mamba2Spec& spec, const Mamba2Weights<typename Ops::Types>& weights,
               const MixerCall& call, MixerScratch& scratch) {
  Mamba2Scratch s = scratch_of(scratch, spec, ops.activation(), call.in.rows);
  ops.recurrence_inputs(call.n_recurrent, s.conv, s.dt);
  const int64_t inner = spec.inner(), bc = int64_t{spec.n_groups} * spec.state_dim;

  ops.linear(weights.in_zx, call.in, s.zx);
  ops.linear(weights.in_dt, call.in, s.dt);
  ops.conv(call.n_recurrent, weights.conv_weight, weights.conv_bias,
           s.zx.slice_cols(inner, spec.conv_channels()), s.conv);

  StepArgs args;
  args.value = {s.conv.data, s.conv.stride};
  args.key = {s.conv.at(0, inner), s.conv.stride};
  args.query = {s.conv.at(0, inner + bc), s.conv.stride};
  args.gate = {s.dt.data, s.dt.stride};
  args.a_log = weights.a_log;
  args.dt_bias = weights.dt_bias;
  args.skip = weights.skip;
  args.out = {s.y.data, s.y.stride};
  ops.recurrence(call.n_recurrent, args);

  ops::GatedNorm norm;
  norm.order = ops::GateOrder::kGateThenNorm;
  norm.group_size = inner / spec.n_groups;
  norm.weight.data = weights.norm;
  norm.eps = spec.norm_eps;
  ops.gated_norm(norm, s.y, s.zx.slice_cols(0, inner), s.y);
  ops.linear_add(weights.out, s.y, call.residual);
  return false;
}

}  // namespace replayssm
