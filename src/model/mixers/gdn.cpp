#include "model/mixers/mixers.h"
#include "ops/norm.h"

namespace replayssm {
namespace {

struct Scratch {
  ops::Matrix qkvz;  // q k v, before the conv | z
  ops::Matrix ba;    // fp32, b | a
  ops::Matrix conv;  // q [key heads, key dim] | k | v [value heads, value dim]
  ops::Matrix y;

  Scratch(Arena& arena, const GdnSpec& spec, DType activation, int64_t n_tokens)
      : qkvz(arena.take(activation, n_tokens, spec.conv_channels() + spec.value_size())),
        ba(arena.take(DType::kF32, n_tokens, 2 * int64_t{spec.n_value_heads})),
        conv(arena.take(activation, n_tokens, spec.conv_channels())),
        y(arena.take(activation, n_tokens, spec.value_size())) {}
};

}  // namespace

size_t scratch_bytes(const GdnSpec& spec, DType activation, int64_t n_tokens) {
  Arena arena(nullptr);
  Scratch(arena, spec, activation, n_tokens);
  return arena.used();
}

void run_gdn(const Pass& pass, const GdnSpec& spec, const GdnWeights& weights,
             const RecurrentLayer& layer, RecurrentPool& pool, ops::ConstMatrix in,
             ops::Matrix out) {
  Arena arena(pass.scratch);
  const Scratch s(arena, spec, pass.activation, pass.n_tokens);

  weights.in_qkvz.run(pass.context, in, s.qkvz);
  weights.in_ba.run(pass.context, in, s.ba);
  run_conv(pass, layer, pool, weights.conv_weight, Vector(),
           s.qkvz.slice_cols(0, spec.conv_channels()), s.conv);

  StepArgs args;
  args.query = {s.conv.data, s.conv.stride};
  args.key = {s.conv.at(0, spec.key_size()), s.conv.stride};
  args.value = {s.conv.at(0, 2 * spec.key_size()), s.conv.stride};
  args.beta = {s.ba.data, s.ba.stride};
  args.gate = {s.ba.at(0, spec.n_value_heads), s.ba.stride};
  args.a_log = weights.a_log.as<float>();
  args.dt_bias = weights.dt_bias.as<float>();
  args.out = {s.y.data, s.y.stride};
  run_recurrence(pass, layer, pool, args);

  ops::GatedNorm norm;
  norm.order = ops::GateOrder::kNormThenGate;
  norm.group_size = spec.value_dim;
  norm.weight.data = weights.norm.as<float>();
  norm.shared_weight = true;
  norm.eps = spec.norm_eps;
  ops::gated_norm(pass.context, norm, s.y,
                  s.qkvz.slice_cols(spec.conv_channels(), spec.value_size()), s.y);
  weights.out.run(pass.context, s.y, out);
}

}  // namespace replayssm
