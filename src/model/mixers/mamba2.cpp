#include "model/mixers/mixers.h"
#include "ops/norm.h"

namespace replayssm {
namespace {

struct Scratch {
  ops::Matrix zx;    // z [inner] | x B C, before the conv
  ops::Matrix dt;    // fp32
  ops::Matrix conv;  // x [inner] | B [groups, state] | C [groups, state]
  ops::Matrix y;

  Scratch(Arena& arena, const Mamba2Spec& spec, DType activation, int64_t n_tokens)
      : zx(arena.take(activation, n_tokens, spec.inner() + spec.conv_channels())),
        dt(arena.take(DType::kF32, n_tokens, spec.n_heads)),
        conv(arena.take(activation, n_tokens, spec.conv_channels())),
        y(arena.take(activation, n_tokens, spec.inner())) {}
};

}  // namespace

size_t scratch_bytes(const Mamba2Spec& spec, DType activation, int64_t n_tokens) {
  Arena arena(nullptr);
  Scratch(arena, spec, activation, n_tokens);
  return arena.used();
}

void run_mamba2(const Pass& pass, const Mamba2Spec& spec, const Mamba2Weights& weights,
                const RecurrentLayer& layer, RecurrentPool& pool, ops::ConstMatrix in,
                ops::Matrix out) {
  Arena arena(pass.scratch);
  const Scratch s(arena, spec, pass.activation, pass.n_tokens);
  const int64_t inner = spec.inner(), bc = int64_t{spec.n_groups} * spec.state_dim;

  weights.in_zx.run(pass.context, in, s.zx);
  weights.in_dt.run(pass.context, in, s.dt);
  run_conv(pass, layer, pool, weights.conv_weight, weights.conv_bias,
           s.zx.slice_cols(inner, spec.conv_channels()), s.conv);

  StepArgs args;
  args.value = {s.conv.data, s.conv.stride};
  args.key = {s.conv.at(0, inner), s.conv.stride};
  args.query = {s.conv.at(0, inner + bc), s.conv.stride};
  args.gate = {s.dt.data, s.dt.stride};
  args.a_log = weights.a_log.as<float>();
  args.dt_bias = weights.dt_bias.as<float>();
  args.skip = weights.skip.as<float>();
  args.out = {s.y.data, s.y.stride};
  run_recurrence(pass, layer, pool, args);

  ops::GatedNorm norm;
  norm.order = ops::GateOrder::kGateThenNorm;
  norm.group_size = inner / spec.n_groups;
  norm.weight.data = weights.norm.as<float>();
  norm.eps = spec.norm_eps;
  ops::gated_norm(pass.context, norm, s.y, s.zx.slice_cols(0, inner), s.y);
  weights.out.run(pass.context, s.y, out);
}

}  // namespace replayssm
