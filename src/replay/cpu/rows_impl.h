// Loads, stores and roundings of activations and ring rows, and the per-token maths of keys,
// queries and gates. Part of an instruction set's translation unit (step_impl.h).
#pragma once

#include "replay/cpu/layout.h"
#include "replay/simd16.h"

namespace replayssm::cpu::REPLAYSSM_ISA {
namespace {

using namespace replayssm::simd::REPLAYSSM_ISA;

inline constexpr int kMaxInterval = 64;
inline constexpr int kMaxKeyDim = 1024;  // plan() refuses more
inline constexpr float kNormEps = 1e-6f;

REPLAYSSM_INLINE int lanes_left(int at, int size) {
  return size - at < kLanes ? size - at : kLanes;
}

// Elements [at, at + lanes) of a typed array, widened; the other lanes are zero.
REPLAYSSM_INLINE V load_typed(DType type, const void* data, int64_t at, int lanes) {
  if (type == DType::kF32) {
    const float* p = static_cast<const float*>(data) + at;
    return lanes == kLanes ? load(p) : load_n(p, lanes);
  }
  const uint16_t* p = static_cast<const uint16_t*>(data) + at;
  if (type == DType::kF16) return lanes == kLanes ? load_half(p) : load_half_n(p, lanes);
  return lanes == kLanes ? load_bf16(p) : load_bf16_n(p, lanes);
}

REPLAYSSM_INLINE void store_typed(DType type, void* data, int64_t at, V v, int lanes) {
  if (type == DType::kF32) {
    float* p = static_cast<float*>(data) + at;
    if (lanes == kLanes) {
      store(p, v);
    } else {
      store_n(p, v, lanes);
    }
  } else if (type == DType::kF16) {
    store_half(static_cast<uint16_t*>(data) + at, v, lanes);
  } else {
    store_bf16(static_cast<uint16_t*>(data) + at, v, lanes);
  }
}

REPLAYSSM_INLINE V load_token(DType type, const Tokens& tokens, int64_t token, int64_t at,
                              int lanes) {
  return load_typed(type, tokens.data, token * tokens.token_stride + at, lanes);
}

REPLAYSSM_INLINE void store_token(DType type, const MutableTokens& tokens, int64_t token,
                                  int64_t at, V v, int lanes) {
  store_typed(type, tokens.data, token * tokens.token_stride + at, v, lanes);
}

REPLAYSSM_INLINE const float* token_float(const Tokens& tokens, int64_t token) {
  return static_cast<const float*>(tokens.data) + token * tokens.token_stride;
}

REPLAYSSM_INLINE void store_ring(DType type, const Ring& ring, int64_t slot, int64_t row,
                                 int64_t at, V v, int lanes) {
  store_typed(type, ring.data, slot * ring.slot_stride + row * ring.row_stride + at, v, lanes);
}

// The value that the ring will hold, widened again. Counts what fp16 could not hold.
REPLAYSSM_INLINE V round_to_ring(DType type, V v, int64_t* saturated) {
  if (type == DType::kF32) return v;
  if (type == DType::kF16) {
    *saturated += count_less(set1(kHalfMax), abs(v));
    return round_half(v);
  }
  uint16_t rounded[kLanes];
  store_bf16(rounded, v);
  return load_bf16(rounded);
}

// One head's ring row of `dim` elements into a zero-padded fp32 row.
inline void load_ring_row(DType type, const Ring& ring, int64_t slot, int64_t row, int64_t at,
                          int dim, float* out) {
  const int64_t first = slot * ring.slot_stride + row * ring.row_stride + at;
  for (int i = 0; i < dim; i += kLanes) {
    store(out + i, load_typed(type, ring.data, first + i, lanes_left(i, dim)));
  }
}

// Zero-padded rows of the same length.
inline float dot(const float* a, const float* b, int padded) {
  V sum = zero();
  for (int i = 0; i < padded; i += kLanes) sum = fma(load(a + i), load(b + i), sum);
  return reduce_add(sum);
}

// x / sqrt(sum x^2 + eps) * factor, in place, zero-padded.
inline void l2_normalise(float* row, int padded, float factor) {
  const float norm = __builtin_sqrtf(dot(row, row, padded) + kNormEps);
  const V scale = set1(factor / norm);
  for (int i = 0; i < padded; i += kLanes) store(row + i, mul(load(row + i), scale));
}

// A token's key as the ring holds it: L2-normalised (Mamba-2: as it comes), rounded, zero-padded.
inline void load_key(const Problem& p, const Layout& l, const StepArgs& a, int64_t token,
                     int key_head, float* out, int64_t* saturated) {
  for (int k = 0; k < p.key_dim; k += kLanes) {
    store(out + k, load_token(p.activation, a.key, token, int64_t{key_head} * p.key_dim + k,
                              lanes_left(k, p.key_dim)));
  }
  if (p.family != Family::kMamba2) l2_normalise(out, l.key_padded, 1.0f);
  for (int k = 0; k < l.key_padded; k += kLanes) {
    store(out + k, round_to_ring(p.ring, load(out + k), saturated));
  }
}

// The key of the token at `position` into the ring.
inline void store_ring_key(const Problem& p, const StepArgs& a, const Row& row, int64_t position,
                           int key_head, const float* key) {
  for (int k = 0; k < p.key_dim; k += kLanes) {
    store_ring(p.ring, a.ring_key, row.ring_slot, p.grid.row_of(position),
               int64_t{key_head} * p.key_dim + k, load(key + k), lanes_left(k, p.key_dim));
  }
}

inline void load_query(const Problem& p, const Layout& l, const StepArgs& a, int64_t token,
                       int key_head, float* out) {
  for (int k = 0; k < p.key_dim; k += kLanes) {
    store(out + k, load_token(p.activation, a.query, token, int64_t{key_head} * p.key_dim + k,
                              lanes_left(k, p.key_dim)));
  }
  if (p.family != Family::kMamba2) {
    l2_normalise(out, l.key_padded, 1.0f / __builtin_sqrtf(static_cast<float>(p.key_dim)));
  }
}

// KDA's log decay of one token and head.
inline void decay_gates_kda(const Problem& p, float a_log, const float* raw, const float* bias,
                            float* out) {
  const V rate = set1(exp1(a_log));
  for (int k = 0; k < p.key_dim; k += kLanes) {
    const int lanes = lanes_left(k, p.key_dim);
    const V x = add(load_n(raw + k, lanes), load_n(bias + k, lanes));
    const V gate = p.decay_gate == DecayGate::kSoftplus
                       ? sub(zero(), mul(rate, softplus(x)))
                       : mul(set1(p.decay_lower_bound), sigmoid(mul(rate, x)));
    store_n(out + k, gate, lanes);
  }
}

// out[z][j] = keys[j] . z for two operands and rows [0, n_rows); rows are zero-padded to
// key_padded. Eight rows at a time share one reduction; rows past n_rows are read (scratch) and
// dropped.
inline void dots_of_pair(const float* keys, int key_padded, int n_rows, const float* z0,
                         const float* z1, float* out0, float* out1) {
  constexpr int kRows = 8;
  for (int j0 = 0; j0 < n_rows; j0 += kRows) {
    V sum[2 * kRows];
    for (V& v : sum) v = zero();
    const float* row = keys + int64_t{j0} * key_padded;
    for (int k = 0; k < key_padded; k += kLanes) {
      const V a = load(z0 + k);
      const V b = load(z1 + k);
#pragma GCC unroll 8
      for (int j = 0; j < kRows; ++j) {
        const V key = load(row + int64_t{j} * key_padded + k);
        sum[j] = fma(key, a, sum[j]);
        sum[kRows + j] = fma(key, b, sum[kRows + j]);
      }
    }
    float lanes[kLanes];
    store(lanes, reduce_add_16(sum));
    const int n = n_rows - j0 < kRows ? n_rows - j0 : kRows;
    for (int j = 0; j < n; ++j) {
      out0[j0 + j] = lanes[j];
      out1[j0 + j] = lanes[kRows + j];
    }
  }
}

}  // namespace
}  // namespace replayssm::cpu::REPLAYSSM_ISA
