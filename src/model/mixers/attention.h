// Grouped-query attention over the paged cache, with a norm per head of q and k, rotary positions
// and an output gate where the spec has them.
//
// Ops: linear, linear_add, sigmoid_mul, and
//   attend(layer, prologue, scale, q, k, v, y)   the prologue, k and v into the cache, attention
//   remember(layer, prologue, k, v)              k and v alone; for the drafting head
#pragma once

#include <cmath>

#include "model/mixers/mixer.h"

namespace replayssm {

// What happens to q and k before they meet the cache.
struct AttentionPrologue {
  ops::NormWeight q_norm = {}, k_norm = {};  // null: none
  float eps = 1e-6f;
  const float* angles = nullptr;  // the RoPE table of the pass's tokens; null: none
  int32_t rope = -1;              // as Model::ropes() counts
};

struct AttentionScratch {
  ops::Matrix qkv;  // q, or [q | gate] a head | k | v
  ops::Matrix y;
};

inline int64_t q_columns(const AttentionSpec& spec) {
  return spec.q_size() * (spec.output_gate ? 2 : 1);
}

inline AttentionScratch scratch_of(MixerScratch& scratch, const AttentionSpec& spec,
                                   DType activation, int64_t n_tokens) {
  AttentionScratch out;
  out.qkv = scratch.matrix(activation, n_tokens, q_columns(spec) + 2 * spec.kv_size());
  out.y = scratch.matrix(activation, n_tokens, spec.q_size());
  return out;
}

// The heads that begin at column `first` of m, head_stride columns apart.
inline ops::Heads heads_of(const ops::Matrix& m, int64_t first, int64_t n, int64_t dim,
                           int64_t head_stride) {
  return {m.at(0, first), m.dtype, m.rows, n, dim, m.stride, head_stride};
}
inline ops::Heads keys_of(const AttentionSpec& spec, const AttentionScratch& s) {
  return heads_of(s.qkv, q_columns(spec), spec.n_kv_heads, spec.head_dim, spec.head_dim);
}
inline ops::Heads values_of(const AttentionSpec& spec, const AttentionScratch& s) {
  return heads_of(s.qkv, q_columns(spec) + spec.kv_size(), spec.n_kv_heads, spec.head_dim,
                  spec.head_dim);
}

template <typename Ops>
AttentionPrologue prologue_of(Ops& ops, const AttentionSpec& spec,
                              const AttentionWeights<typename Ops::Types>& weights,
                              const MixerCall& call) {
  AttentionPrologue prologue;
  if (spec.qk_norm) {
    prologue.q_norm = {weights.q_norm, spec.qk_norm_zero_centred};
    prologue.k_norm = {weights.k_norm, spec.qk_norm_zero_centred};
    prologue.eps = spec.qk_norm_eps;
  }
  prologue.rope = ops.rope_of(call.n_attention);
  if (prologue.rope >= 0) prologue.angles = call.angles[static_cast<size_t>(prologue.rope)];
  return prologue;
}

// What run_mixer() leaves in the cache, and nothing else.
template <typename Ops>
void run_entries(Ops& ops, const AttentionSpec& spec,
                 const AttentionWeights<typename Ops::Types>& weights, const MixerCall& call,
                 MixerScratch& scratch) {
  const AttentionScratch s = scratch_of(scratch, spec, ops.activation(), call.in.rows);
  ops.linear(weights.in_qkv, call.in, s.qkv);
  ops.remember(call.n_attention, prologue_of(ops, spec, weights, call), keys_of(spec, s),
               values_of(spec, s));
}

template <typename Ops>
bool run_mixer(Ops& ops, const AttentionSpec& spec,
               const AttentionWeights<typename Ops::Types>& weights, const MixerCall& call,
               MixerScratch& scratch) {
  const AttentionScratch s = scratch_of(scratch, spec, ops.activation(), call.in.rows);
  const int64_t dim = spec.head_dim, q_stride = spec.output_gate ? 2 * dim : dim;
  const ops::Heads y = heads_of(s.y, 0, spec.n_heads, dim, dim);

  ops.linear(weights.in_qkv, call.in, s.qkv);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  ops.attend(call.n_attention, prologue_of(ops, spec, weights, call), scale,
             heads_of(s.qkv, 0, spec.n_heads, dim, q_stride), keys_of(spec, s), values_of(spec, s),
             y);
  if (spec.output_gate) {
    ops.sigmoid_mul(y, heads_of(s.qkv, dim, spec.n_heads, dim, q_stride), y);
  }
  ops.linear_add(weights.out, s.y, call.residual);
  return false;
}

}  // namespace replayssm
