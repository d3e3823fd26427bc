#include "ops/attention.h"

#include <cmath>

#include "model/mixers/mixers.h"
#include "ops/elementwise.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace replayssm {
namespace {

int64_t q_columns(const AttentionSpec& spec) { return spec.q_size() * (spec.output_gate ? 2 : 1); }

struct Scratch {
  ops::Matrix qkv;  // q, or [q | gate] a head | k | v
  ops::Matrix y;

  Scratch(Arena& arena, const AttentionSpec& spec, DType activation, int64_t n_tokens)
      : qkv(arena.take(activation, n_tokens, q_columns(spec) + 2 * spec.kv_size())),
        y(arena.take(activation, n_tokens, spec.q_size())) {}
};

// The heads that begin at column `first` of m, head_stride columns apart.
ops::Heads heads_of(const ops::Matrix& m, int64_t first, int64_t n_heads, int64_t dim,
                    int64_t head_stride) {
  return {m.at(0, first), m.dtype, m.rows, n_heads, dim, m.stride, head_stride};
}

}  // namespace

size_t scratch_bytes(const AttentionSpec& spec, DType activation, int64_t n_tokens) {
  Arena arena(nullptr);
  Scratch(arena, spec, activation, n_tokens);
  return arena.used();
}

void run_attention(const Pass& pass, const AttentionSpec& spec, const AttentionWeights& weights,
                   const AttentionLayer& layer, const ops::KvPool& pool, ops::ConstMatrix in,
                   ops::Matrix out) {
  Arena arena(pass.scratch);
  const Scratch s(arena, spec, pass.activation, pass.n_tokens);
  const int64_t dim = spec.head_dim, q_stride = spec.output_gate ? 2 * dim : dim;
  const ops::Heads q = heads_of(s.qkv, 0, spec.n_heads, dim, q_stride);
  const ops::Heads k = heads_of(s.qkv, q_columns(spec), spec.n_kv_heads, dim, dim);
  const ops::Heads v = heads_of(s.qkv, q_columns(spec) + spec.kv_size(), spec.n_kv_heads, dim, dim);
  const ops::Heads y = heads_of(s.y, 0, spec.n_heads, dim, dim);

  weights.in_qkv.run(pass.context, in, s.qkv);
  if (spec.qk_norm) {
    const bool centred = spec.qk_norm_zero_centred;
    ops::head_norm(pass.context, q, {weights.q_norm.as<float>(), centred}, spec.qk_norm_eps);
    ops::head_norm(pass.context, k, {weights.k_norm.as<float>(), centred}, spec.qk_norm_eps);
  }
  if (layer.rope >= 0) {
    const auto i = static_cast<size_t>(layer.rope);
    const ops::Rope& rope = pass.model.ropes()[i];
    rope.apply(pass.context, pass.angles[i].as<float>(), q);
    rope.apply(pass.context, pass.angles[i].as<float>(), k);
  }
  const auto n_rows = static_cast<int64_t>(pass.rows.attention.size());
  ops::kv_append(pass.context, layer.kv, pool, pass.rows.attention.data(), n_rows, k, v);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  ops::attention(pass.context, layer.kv, pool, pass.rows.attention.data(), n_rows, scale, q, y);
  if (spec.output_gate) {
    const ops::Heads gate = heads_of(s.qkv, dim, spec.n_heads, dim, q_stride);
    ops::sigmoid_mul(pass.context, y, gate, y);
  }
  weights.out.run(pass.context, s.y, out);
}

}  // namespace replayssm
