// Products with the checkpoint and its fold, tile by tile. Part of an instruction set's translation
// unit (step_impl.h).
#pragma once

#include "replay/cpu/layout.h"
#include "replay/simd16.h"

namespace replayssm::cpu::REPLAYSSM_ISA {
namespace {

using namespace replayssm::simd::REPLAYSSM_ISA;

#if defined(REPLAYSSM_SIMD_AVX512)
inline constexpr int kAccumulators = 16;  // vectors kept in registers by the products
inline constexpr int kMaxOperands = 8;    // operands z multiplied in one pass over a tile
inline constexpr int kFoldTiles = 2;
inline constexpr int kFoldKeys = 8;  // a fold keeps kFoldTiles x kFoldKeys sums in registers
inline constexpr int kOutputTiles = 4;
#else
inline constexpr int kAccumulators = 4;
inline constexpr int kMaxOperands = 4;
inline constexpr int kFoldTiles = 1;
inline constexpr int kFoldKeys = 4;
inline constexpr int kOutputTiles = 1;
#endif

template <DType kType>
REPLAYSSM_INLINE V load_state(const void* base, int64_t element) {
  if constexpr (kType == DType::kF32) return load(static_cast<const float*>(base) + element);
  if constexpr (kType == DType::kF16)
    return load_half(static_cast<const uint16_t*>(base) + element);
  if constexpr (kType == DType::kBF16)
    return load_bf16(static_cast<const uint16_t*>(base) + element);
  if constexpr (kType == DType::kI8) return load_i8(static_cast<const int8_t*>(base) + element);
}

// Rounds to the checkpoint's dtype (not int8, whose scale needs the whole row).
template <DType kType>
REPLAYSSM_INLINE void store_counted(void* base, int64_t element, V s, int64_t* saturated) {
  if constexpr (kType == DType::kF32) store(static_cast<float*>(base) + element, s);
  if constexpr (kType == DType::kF16) {
    *saturated += count_less(set1(kHalfMax), abs(s));
    store_half(static_cast<uint16_t*>(base) + element, s);
  }
  if constexpr (kType == DType::kBF16) store_bf16(static_cast<uint16_t*>(base) + element, s);
}

// The part of the slot that this worker reads next. A product prefetches as many bytes of it as it
// reads itself, so that arithmetic hides the memory latency; the hardware prefetcher would start
// anew at every page.
struct Ahead {
  const char* at = nullptr;
  const char* end = nullptr;

  REPLAYSSM_INLINE void fetch(int64_t n_bytes) {
    if (at >= end) return;
    for (int64_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
    at += n_bytes;
  }
};

// The width of the next operand block when `left` operands remain.
REPLAYSSM_INLINE int block_width(int left) {
  int width = kMaxOperands;
  while (width > left) width /= 2;
  return width;
}

template <DType kType, int kWidth, int kTiles>
REPLAYSSM_INLINE void products_block(const void* state, int64_t element, int key_dim,
                                     const float* operands, int64_t operand_stride,
                                     const float* scale, float* out, int64_t out_stride,
                                     Ahead& ahead_of_unit) {
  Ahead ahead = ahead_of_unit;  // in registers
  const float* operand[kWidth];
  for (int z = 0; z < kWidth; ++z) operand[z] = operands + z * operand_stride;
  V sum[kTiles][kWidth];
  for (auto& tile : sum) {
    for (auto& v : tile) v = zero();
  }
  const int64_t tile_elements = int64_t{kTile} * key_dim;
  for (int k = 0; k < key_dim; ++k) {
    ahead.fetch(kTiles * kTile * dtype_bytes(kType));
    V s[kTiles];
#pragma GCC unroll 4
    for (int i = 0; i < kTiles; ++i) {
      s[i] = load_state<kType>(state, element + i * tile_elements + int64_t{k} * kTile);
    }
#pragma GCC unroll 8
    for (int z = 0; z < kWidth; ++z) {
      const V factor = set1(operand[z][k]);
#pragma GCC unroll 4
      for (int i = 0; i < kTiles; ++i) sum[i][z] = fma(s[i], factor, sum[i][z]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kTiles; ++i) {
#pragma GCC unroll 8
    for (int z = 0; z < kWidth; ++z) {
      V v = sum[i][z];
      if constexpr (kType == DType::kI8) v = mul(v, load(scale + i * kTile));
      store(out + z * out_stride + i * kTile, v);
    }
  }
  ahead_of_unit = ahead;
}

template <DType kType, int kWidth>
void products_width(const void* state, const Layout& l, int key_dim, const float* operands,
                    const float* scale, float* out, Ahead& ahead) {
  constexpr int kTiles = kAccumulators / kWidth < 4 ? kAccumulators / kWidth : 4;
  const int64_t tile_elements = int64_t{kTile} * key_dim;
  int tile = 0;
  for (; tile + kTiles <= l.n_tiles; tile += kTiles) {
    products_block<kType, kWidth, kTiles>(state, tile * tile_elements, key_dim, operands,
                                          l.key_padded,
                                          kType == DType::kI8 ? scale + tile * kTile : nullptr,
                                          out + tile * kTile, l.value_padded, ahead);
  }
  for (; tile < l.n_tiles; ++tile) {
    products_block<kType, kWidth, 1>(state, tile * tile_elements, key_dim, operands, l.key_padded,
                                     kType == DType::kI8 ? scale + tile * kTile : nullptr,
                                     out + tile * kTile, l.value_padded, ahead);
  }
}

// out[z][v] = sum_k S[v][k] z[k] for n operands [n][key_padded]; one sequential sum per element,
// whatever n.
template <DType kType>
void products_typed(const void* state, const float* scale, const Layout& l, int key_dim,
                    const float* operands, int n, float* out, Ahead& ahead) {
  int begin = 0;
  while (begin < n) {
    const int width = block_width(n - begin);
    const float* block = operands + static_cast<int64_t>(begin) * l.key_padded;
    float* to = out + static_cast<int64_t>(begin) * l.value_padded;
    if constexpr (kMaxOperands >= 8) {
      if (width == 8) products_width<kType, 8>(state, l, key_dim, block, scale, to, ahead);
    }
    if (width == 4) products_width<kType, 4>(state, l, key_dim, block, scale, to, ahead);
    if (width == 2) products_width<kType, 2>(state, l, key_dim, block, scale, to, ahead);
    if (width == 1) products_width<kType, 1>(state, l, key_dim, block, scale, to, ahead);
    begin += width;
  }
}

inline void products(DType type, const void* state, const float* scale, const Layout& l,
                     int key_dim, const float* operands, int n, float* out, Ahead& ahead) {
  switch (type) {
    case DType::kF32:
      return products_typed<DType::kF32>(state, scale, l, key_dim, operands, n, out, ahead);
    case DType::kF16:
      return products_typed<DType::kF16>(state, scale, l, key_dim, operands, n, out, ahead);
    case DType::kBF16:
      return products_typed<DType::kBF16>(state, scale, l, key_dim, operands, n, out, ahead);
    case DType::kI8:
      return products_typed<DType::kI8>(state, scale, l, key_dim, operands, n, out, ahead);
  }
}

// x to seventeen significant bits (Veltkamp's splitting).
REPLAYSSM_INLINE V round_to_17_bits(V x) {
  const V c = mul(x, set1(129.0f));
  return sub(c, sub(c, x));
}

// An int8 row's scale is max |row| / 127 to seventeen bits: q * scale is then exact in fp32, and
// the scale of the row so given is the same again. Rows below 2^-100 count as zero; a row with a
// NaN or an infinity has a NaN scale, so that it stays visible.
inline void store_tile_i8(const float* tile, int key_dim, int8_t* to, float* scale) {
  V largest = zero();
  V not_finite = zero();
  for (int k = 0; k < key_dim; ++k) {
    const V s = load(tile + k * kTile);
    largest = max(abs(s), largest);
    not_finite = fma(s, zero(), not_finite);
  }
  const V step = select_less(largest, set1(0x1p-100f), zero(),
                             round_to_17_bits(mul(largest, set1(1.0f / 127.0f))));
  const V inverse = select_less(zero(), step, div(set1(1.0f), step), zero());
  store(scale, add(step, not_finite));
  for (int k = 0; k < key_dim; ++k) {
    const V q = round_even(mul(load(tile + k * kTile), inverse));
    store_i8_raw(to + k * kTile, min(max(q, set1(-127.0f)), set1(127.0f)));
  }
}

// S'[k] = decay[k] * S[k] + sum_j keys[j][k] * weighted[j], j in order, for kTiles tiles of one
// head, to element to_element of `to` as kTo. S may be null (the zero state), and may be `to`
// itself. weighted is [n_rows][kTiles * 16].
template <DType kType, DType kTo, int kTiles>
REPLAYSSM_INLINE void fold_tiles(const void* state, int64_t element, const float* scale,
                                 int key_dim, int n_rows, const float* decay, const float* keys,
                                 int key_stride, const float* weighted, void* to,
                                 int64_t to_element, int64_t* saturated) {
  const int64_t tile_elements = int64_t{kTile} * key_dim;
  for (int k0 = 0; k0 < key_dim; k0 += kFoldKeys) {
    const int n_keys = key_dim - k0 < kFoldKeys ? key_dim - k0 : kFoldKeys;
    V s[kTiles][kFoldKeys];
#pragma GCC unroll 2
    for (int i = 0; i < kTiles; ++i) {
#pragma GCC unroll 8
      for (int key = 0; key < kFoldKeys; ++key) {
        s[i][key] = zero();
        if (state == nullptr || key >= n_keys) continue;
        const int k = k0 + key;
        s[i][key] = load_state<kType>(state, element + i * tile_elements + int64_t{k} * kTile);
        if constexpr (kType == DType::kI8) s[i][key] = mul(s[i][key], load(scale + i * kTile));
        s[i][key] = mul(s[i][key], set1(decay[k]));
      }
    }
    // Keys are padded with zeros to a multiple of sixteen, so a block may read past key_dim.
    const float* key_row = keys + k0;
    const float* values = weighted;
    for (int j = 0; j < n_rows; ++j, key_row += key_stride, values += kTiles * kTile) {
      V u[kTiles];
#pragma GCC unroll 2
      for (int i = 0; i < kTiles; ++i) u[i] = load(values + i * kTile);
#pragma GCC unroll 8
      for (int key = 0; key < kFoldKeys; ++key) {
        const V operand = set1(key_row[key]);
#pragma GCC unroll 2
        for (int i = 0; i < kTiles; ++i) s[i][key] = fma(operand, u[i], s[i][key]);
      }
    }
    for (int i = 0; i < kTiles; ++i) {
#pragma GCC unroll 8
      for (int key = 0; key < kFoldKeys; ++key) {
        if (key >= n_keys) continue;
        store_counted<kTo>(to, to_element + i * tile_elements + (k0 + key) * kTile, s[i][key],
                           saturated);
      }
    }
  }
}

}  // namespace
}  // namespace replayssm::cpu::REPLAYSSM_ISA
