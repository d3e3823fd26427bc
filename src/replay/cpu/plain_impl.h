// The plain recurrence, a few tiles at a time: they stay in the L1 cache while the window's tokens
// are processed. Part of an instruction set's translation unit.
#pragma once

#include "replay/cpu/rows_impl.h"
#include "replay/cpu/state_impl.h"

namespace replayssm::cpu::REPLAYSSM_ISA {
namespace {

inline constexpr int kPlainTiles = 2;

// Copies past the caches: a snapshot is not read again soon. 64-byte aligned, a multiple of 64
// bytes.
inline void stream_copy(void* to, const void* from, int64_t bytes) {
#if defined(REPLAYSSM_SIMD_AVX512)
  for (int64_t i = 0; i < bytes; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(static_cast<char*>(to) + i),
                        _mm512_loadu_si512(static_cast<const char*>(from) + i));
  }
#elif defined(REPLAYSSM_SIMD_AVX2)
  for (int64_t i = 0; i < bytes; i += 32) {
    _mm256_stream_si256(
        reinterpret_cast<__m256i*>(static_cast<char*>(to) + i),
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const char*>(from) + i)));
  }
#else
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

template <DType kType>
REPLAYSSM_INLINE void store_state(void* state, int64_t element, V s) {
  if constexpr (kType == DType::kF32) store(static_cast<float*>(state) + element, s);
  if constexpr (kType == DType::kF16) store_half(static_cast<uint16_t*>(state) + element, s);
  if constexpr (kType == DType::kBF16) store_bf16(static_cast<uint16_t*>(state) + element, s);
}

// One token over kTiles tiles: S <- S diag(decay) + u k^T, out = S q. `from` may be null (zero) and
// may be `to`.
template <DType kType, int kTiles>
REPLAYSSM_INLINE void plain_token(const void* from, void* to, int key_dim, const float* decay,
                                  const float* key, const float* query, bool delta_rule, float beta,
                                  const V* value, V* out) {
  const int64_t tile_elements = int64_t{kTile} * key_dim;
  V u[kTiles];
  for (int i = 0; i < kTiles; ++i) u[i] = mul(set1(beta), value[i]);
  if (delta_rule && from != nullptr) {
    V read[kTiles];
    for (int i = 0; i < kTiles; ++i) read[i] = zero();
    for (int k = 0; k < key_dim; ++k) {
      const V operand = set1(decay[k] * key[k]);
#pragma GCC unroll 2
      for (int i = 0; i < kTiles; ++i) {
        read[i] =
            fma(load_state<kType>(from, i * tile_elements + int64_t{k} * kTile), operand, read[i]);
      }
    }
    for (int i = 0; i < kTiles; ++i) u[i] = mul(set1(beta), sub(value[i], read[i]));
  }
  for (int i = 0; i < kTiles; ++i) out[i] = zero();
  for (int k = 0; k < key_dim; ++k) {
    const V d = set1(decay[k]);
    const V operand = set1(key[k]);
    const V q = set1(query[k]);
#pragma GCC unroll 2
    for (int i = 0; i < kTiles; ++i) {
      const int64_t at = i * tile_elements + int64_t{k} * kTile;
      V s = mul(u[i], operand);
      if (from != nullptr) s = fma(load_state<kType>(from, at), d, s);
      store_state<kType>(to, at, s);
      out[i] = fma(s, q, out[i]);
    }
  }
}

struct PlainHead {
  const Problem& p;
  const Layout& l;
  const PlainArgs& a;
  const Row& row;
  const int32_t* write_slots;
  int head;
  const PlainScratch& s;
};

// n prepared tokens over kTiles tiles, from `from` on; `more` chunks follow: leave the state in
// `local`.
template <DType kType, int kTiles>
void plain_tiles(const PlainHead& h, int64_t token, int n, int first, int tile, const void* from,
                 void* local, bool more) {
  const Problem& p = h.p;
  const bool mamba = p.family == Family::kMamba2;
  const int64_t bytes = dtype_bytes(kType);
  const int64_t offset =
      h.head * h.l.head_elements + int64_t{tile} * kTile * p.key_dim;  // within a slot
  for (int t = 0; t < n; ++t) {
    V value[kTiles];
    V out[kTiles];
    for (int i = 0; i < kTiles; ++i) {
      const int v0 = (tile + i) * kTile;
      value[i] = load_token(p.activation, h.a.base.value, token + t,
                            int64_t{h.head} * p.value_dim + v0, lanes_left(v0, p.value_dim));
    }
    const int slot = h.write_slots[first + t];
    char* target = slot < 0 ? nullptr
                            : static_cast<char*>(h.a.base.checkpoint) +
                                  (slot * h.a.base.checkpoint_slot_stride + offset) * bytes;
    // A lone token updates its slot directly; a snapshot of several leaves the caches alone.
    const bool direct = target != nullptr && (target == from || n == 1);
    void* to = direct ? target : local;
    plain_token<kType, kTiles>(from, to, p.key_dim, h.s.decay + int64_t{t} * p.key_dim,
                               h.s.keys + int64_t{t} * h.l.key_padded,
                               h.s.queries + int64_t{t} * h.l.key_padded, !mamba, h.s.beta[t],
                               value, out);
    if (target != nullptr && !direct) {
      stream_copy(target, local, int64_t{kTiles} * kTile * p.key_dim * bytes);
    }
    from = to;
    for (int i = 0; i < kTiles; ++i) {
      const int v0 = (tile + i) * kTile;
      if (mamba) out[i] = fma(set1(h.a.base.skip[h.head]), value[i], out[i]);
      store_token(p.activation, h.a.base.out, token + t, int64_t{h.head} * p.value_dim + v0, out[i],
                  lanes_left(v0, p.value_dim));
    }
  }
  if (more && from != local) {
    std::memcpy(local, from, static_cast<size_t>(kTiles * kTile * p.key_dim * bytes));
  }
}

// Keys, queries, decays and betas of n tokens of one head.
inline void plain_prepare(const PlainHead& h, int64_t token, int n) {
  const Problem& p = h.p;
  const StepArgs& a = h.a.base;
  const int key_head = h.head / h.l.heads_per_key;
  int64_t uncounted = 0;
  Problem exact = p;  // no ring, so no rounding of keys
  exact.ring = DType::kF32;
  for (int t = 0; t < n; ++t) {
    load_key(exact, h.l, a, token + t, key_head, h.s.keys + int64_t{t} * h.l.key_padded,
             &uncounted);
    load_query(p, h.l, a, token + t, key_head, h.s.queries + int64_t{t} * h.l.key_padded);
    float* decay = h.s.decay + int64_t{t} * p.key_dim;
    if (p.family == Family::kKda) {
      decay_gates_kda(p, a.a_log[h.head],
                      token_float(a.gate, token + t) + int64_t{h.head} * p.key_dim,
                      a.dt_bias + int64_t{h.head} * p.key_dim, decay);
      for (int k = 0; k < p.key_dim; k += kLanes) {
        const int lanes = lanes_left(k, p.key_dim);
        store_n(decay + k, exp(load_n(decay + k, lanes)), lanes);
      }
    } else {
      float lanes[kLanes];
      const float raw = token_float(a.gate, token + t)[h.head];
      store(lanes, softplus(set1(raw + a.dt_bias[h.head])));
      const float step = exp1(-exp1(a.a_log[h.head]) * lanes[0]);
      for (int k = 0; k < p.key_dim; ++k) decay[k] = step;
      if (p.family == Family::kMamba2) h.s.beta[t] = lanes[0];
    }
    if (p.family != Family::kMamba2) {
      float lanes[kLanes];
      store(lanes, mul(set1(p.beta_scale), sigmoid(set1(token_float(a.beta, token + t)[h.head]))));
      h.s.beta[t] = lanes[0];
    }
  }
}

template <DType kType>
void plain_head(const PlainHead& h) {
  const Problem& p = h.p;
  const int64_t bytes = dtype_bytes(kType);
  const void* slot =
      h.row.n == 0
          ? nullptr
          : static_cast<const char*>(h.a.base.checkpoint) +
                (h.row.read_slot * h.a.base.checkpoint_slot_stride + h.head * h.l.head_elements) *
                    bytes;
  char* local = h.s.state;
  for (int first = 0; first < h.row.n_tokens; first += kChunk) {
    const int n = h.row.n_tokens - first < kChunk ? h.row.n_tokens - first : kChunk;
    const int64_t token = h.row.token + first;
    const bool more = first + n < h.row.n_tokens;
    plain_prepare(h, token, n);
    for (int tile = 0; tile < h.l.n_tiles;) {
      const int64_t at = int64_t{tile} * kTile * p.key_dim * bytes;
      const void* from = first > 0         ? local + at
                         : slot == nullptr ? nullptr
                                           : static_cast<const char*>(slot) + at;
      if (tile + kPlainTiles <= h.l.n_tiles) {
        plain_tiles<kType, kPlainTiles>(h, token, n, first, tile, from, local + at, more);
        tile += kPlainTiles;
      } else {
        plain_tiles<kType, 1>(h, token, n, first, tile, from, local + at, more);
        ++tile;
      }
    }
  }
}

void run_plain(const Problem& problem, const Layout& layout, const PlainArgs& args, const Row& row,
               const int32_t* write_slots, int head, char* scratch) {
  PlainScratch s;
  s.place(problem, layout, scratch);
  const PlainHead h{problem, layout, args, row, write_slots, head, s};
  switch (problem.checkpoint) {
    case DType::kF32:
      return plain_head<DType::kF32>(h);
    case DType::kF16:
      return plain_head<DType::kF16>(h);
    default:
      return plain_head<DType::kBF16>(h);
  }
}

}  // namespace
}  // namespace replayssm::cpu::REPLAYSSM_ISA
