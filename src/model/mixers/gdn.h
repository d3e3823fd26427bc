// Gated DeltaNet: q k v through a short conv; the recurrence; norm per head, then gate z; out_proj.
//
// Ops: linear, linear_add, recurrence_inputs (where the conv's output and the gates go), conv,
// recurrence, gated_norm.
#pragma once

#include "model/mixers/mixer.h"
#include "replay/step.h"

namespace replayssm {

struct GdnScratch {
  ops::Matrix qkvz;  // q k v, before the conv | z
  ops::Matrix ba;    // fp32, b | a
  ops::Matrix conv;  // q [key heads, key dim] | k | v [value heads, value dim]
  ops::Matrix y;
};

inline GdnScratch scratch_of(MixerScratch& scratch, const GdnSpec& spec, DType activation,
                             int64_t n_tokens) {
  GdnScratch out;
  out.qkvz = scratch.matrix(activation, n_tokens, spec.conv_channels() + spec.value_size());
  out.ba = scratch.matrix(DType::kF32, n_tokens, 2 * int64_t{spec.n_value_heads});
  out.conv = scratch.matrix(activation, n_tokens, spec.conv_channels());
  out.y = scratch.matrix(activation, n_tokens, spec.value_size());
  return out;
}

template <typename Ops>
bool run_mixer(Ops& ops, const GdnSpec& spec, const GdnWeights<typename Ops::Types>& weights,
               const MixerCall& call, MixerScratch& scratch) {
  GdnScratch s = scratch_of(scratch, spec, ops.activation(), call.in.rows);
  ops.recurrence_inputs(call.n_recurrent, s.conv, s.ba);

  ops.linear(weights.in_qkvz, call.in, s.qkvz);
  ops.linear(weights.in_ba, call.in, s.ba);
  ops.conv(call.n_recurrent, weights.conv_weight, nullptr,
           s.qkvz.slice_cols(0, spec.conv_channels()), s.conv);

  StepArgs args;
  args.query = {s.conv.data, s.conv.stride};
  args.key = {s.conv.at(0, spec.key_size()), s.conv.stride};
  args.value = {s.conv.at(0, 2 * spec.key_size()), s.conv.stride};
  args.beta = {s.ba.data, s.ba.stride};
  args.gate = {s.ba.at(0, spec.n_value_heads), s.ba.stride};
  args.a_log = weights.a_log;
  args.dt_bias = weights.dt_bias;
  args.out = {s.y.data, s.y.stride};
  ops.recurrence(call.n_recurrent, args);

  ops::GatedNorm norm;
  norm.order = ops::GateOrder::kNormThenGate;
  norm.group_size = spec.value_dim;
  norm.weight.data = weights.norm;
  norm.shared_weight = true;
  norm.eps = spec.norm_eps;
  const ops::Matrix z = s.qkvz.slice_cols(spec.conv_channels(), spec.value_size());
  ops::Matrix y = s.y;
  if (weights.tiled) {
    norm.tile = spec.n_key_heads;
    y = s.qkvz.slice_cols(0, spec.value_size());  // what the convolution has read
  }
  ops.gated_norm(norm, s.y, z, y);
  ops.linear_add(weights.out, y, call.residual);
  return false;
}

}  // namespace replayssm
