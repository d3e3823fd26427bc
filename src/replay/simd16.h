// Sixteen fp32 lanes, the one vector type of the CPU kernels. Included by the translation units of
// each instruction set (cmake/Isa.cmake); REPLAYSSM_ISA names the set and its namespace, so that
// the versions never meet. On AVX-512 it is one register, on AVX2 two, else sixteen floats in a
// loop.
//
// Every operation treats lanes alike, so a tail handled by load_n gives a lane the bits that a full
// vector gives it. reduce_add is one fixed tree. fma is fused on AVX2 and AVX-512, a product and a
// sum on the portable set: bits are promised within one set.
#pragma once

#include <cstdint>
#include <cstring>

#include "replay/convert.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define REPLAYSSM_SIMD_AVX512 1
#define REPLAYSSM_ISA avx512
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define REPLAYSSM_SIMD_AVX2 1
#define REPLAYSSM_ISA avx2
#include <immintrin.h>
#else
#define REPLAYSSM_SIMD_PORTABLE 1
#define REPLAYSSM_ISA portable
#endif

#define REPLAYSSM_INLINE inline __attribute__((always_inline))

namespace replayssm::simd::REPLAYSSM_ISA {

inline constexpr int kLanes = 16;

#if defined(REPLAYSSM_SIMD_AVX512)

struct V {
  __m512 v;
};

REPLAYSSM_INLINE V zero() { return {_mm512_setzero_ps()}; }
REPLAYSSM_INLINE V set1(float x) { return {_mm512_set1_ps(x)}; }
REPLAYSSM_INLINE V load(const float* p) { return {_mm512_loadu_ps(p)}; }
REPLAYSSM_INLINE void store(float* p, V a) { _mm512_storeu_ps(p, a.v); }
REPLAYSSM_INLINE __mmask16 mask_of(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
// Lanes [0, n) from memory, the rest zero; memory past n is not touched. 0 <= n <= 16.
REPLAYSSM_INLINE V load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(mask_of(n), p)}; }
REPLAYSSM_INLINE void store_n(float* p, V a, int n) { _mm512_mask_storeu_ps(p, mask_of(n), a.v); }
REPLAYSSM_INLINE V load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
REPLAYSSM_INLINE V load_bf16_n(const uint16_t* p, int n) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask_of(n), p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
REPLAYSSM_INLINE V load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))};
}
REPLAYSSM_INLINE V load_half_n(const uint16_t* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask_of(n), p))};
}
REPLAYSSM_INLINE V load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
REPLAYSSM_INLINE V add(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
REPLAYSSM_INLINE V sub(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
REPLAYSSM_INLINE V mul(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
REPLAYSSM_INLINE V div(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
REPLAYSSM_INLINE V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand when the comparison is false or unordered: min(NaN, b) = b.
REPLAYSSM_INLINE V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
REPLAYSSM_INLINE V max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
REPLAYSSM_INLINE V abs(V a) { return {_mm512_abs_ps(a.v)}; }
// a where x < y, else b (unordered: b).
REPLAYSSM_INLINE V select_less(V x, V y, V a, V b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
}
// a where x is NaN, else b.
REPLAYSSM_INLINE V select_nan(V x, V a, V b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), b.v, a.v)};
}
REPLAYSSM_INLINE int count_less(V x, V y) {
  return __builtin_popcount(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ));
}
REPLAYSSM_INLINE V round_even(V a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for integral n in [-126, 127].
REPLAYSSM_INLINE V exp2_int(V n) {
  const __m512i bits = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 23))};
}
REPLAYSSM_INLINE void store_bf16_raw(uint16_t* p, V a, int n) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_epi32(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
  const __m512i quiet = _mm512_or_epi32(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  rounded = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), rounded, quiet);
  _mm256_mask_storeu_epi16(p, mask_of(n), _mm512_cvtepi32_epi16(rounded));
}
REPLAYSSM_INLINE void store_half_raw(uint16_t* p, V a, int n) {
  _mm256_mask_storeu_epi16(p, mask_of(n), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
// a as fp16 holds it; the caller has saturated.
REPLAYSSM_INLINE V round_half_raw(V a) {
  return {_mm512_cvtph_ps(_mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT))};
}
REPLAYSSM_INLINE void store_i8_raw(int8_t* p, V a) {  // |a| <= 127, integral
  _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
REPLAYSSM_INLINE void halves(V a, float out[8]) {  // lane i + lane i + 8
  const __m256 low = _mm512_castps512_ps256(a.v);
  const __m256 high = _mm512_extractf32x8_ps(a.v, 1);
  _mm256_storeu_ps(out, _mm256_add_ps(low, high));
}

#elif defined(REPLAYSSM_SIMD_AVX2)

struct V {
  __m256 a, b;
};

REPLAYSSM_INLINE V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
REPLAYSSM_INLINE V set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
REPLAYSSM_INLINE V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
REPLAYSSM_INLINE void store(float* p, V x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
// Lanes [0, n) from memory, the rest zero; memory past n is not touched. 0 <= n <= 16.
REPLAYSSM_INLINE V load_n(const float* p, int n) {
  float t[16] = {};
  for (int i = 0; i < n; ++i) t[i] = p[i];
  return load(t);
}
REPLAYSSM_INLINE void store_n(float* p, V x, int n) {
  float t[16];
  store(t, x);
  for (int i = 0; i < n; ++i) p[i] = t[i];
}
REPLAYSSM_INLINE __m256 widen_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
REPLAYSSM_INLINE V load_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
REPLAYSSM_INLINE V load_bf16_n(const uint16_t* p, int n) {
  uint16_t t[16] = {};
  for (int i = 0; i < n; ++i) t[i] = p[i];
  return load_bf16(t);
}
REPLAYSSM_INLINE V load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
REPLAYSSM_INLINE V load_half_n(const uint16_t* p, int n) {
  uint16_t t[16] = {};
  for (int i = 0; i < n; ++i) t[i] = p[i];
  return load_half(t);
}
REPLAYSSM_INLINE V load_i8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
REPLAYSSM_INLINE V add(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
REPLAYSSM_INLINE V sub(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
REPLAYSSM_INLINE V mul(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
REPLAYSSM_INLINE V div(V x, V y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
REPLAYSSM_INLINE V fma(V x, V y, V z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
// The second operand when the comparison is false or unordered: min(NaN, b) = b.
REPLAYSSM_INLINE V min(V x, V y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
REPLAYSSM_INLINE V max(V x, V y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
REPLAYSSM_INLINE V abs(V x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
// a where x < y, else b (unordered: b).
REPLAYSSM_INLINE V select_less(V x, V y, V a, V b) {
  return {_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
// a where x is NaN, else b.
REPLAYSSM_INLINE V select_nan(V x, V a, V b) {
  return {_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)),
          _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))};
}
REPLAYSSM_INLINE int count_less(V x, V y) {
  return __builtin_popcount(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ))) +
         __builtin_popcount(_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)));
}
REPLAYSSM_INLINE V round_even(V x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
REPLAYSSM_INLINE __m256 exp2_int8(__m256 n) {
  const __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}
// 2^n for integral n in [-126, 127].
REPLAYSSM_INLINE V exp2_int(V n) { return {exp2_int8(n.a), exp2_int8(n.b)}; }
REPLAYSSM_INLINE void store_bf16_raw(uint16_t* p, V x, int n) {
  float t[16];
  uint32_t bits[16];
  store(t, x);
  std::memcpy(bits, t, sizeof(bits));
  for (int i = 0; i < n; ++i) {
    const bool nan = (bits[i] & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = (bits[i] + 0x7fffu + ((bits[i] >> 16) & 1u)) >> 16;
    p[i] = static_cast<uint16_t>(nan ? (bits[i] >> 16) | 0x40u : rounded);
  }
}
REPLAYSSM_INLINE void store_half_raw(uint16_t* p, V x, int n) {
  uint16_t t[16];
  _mm_storeu_si128((__m128i*)t, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(t + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
  if (n == 16) {
    std::memcpy(p, t, sizeof(t));
  } else {
    for (int i = 0; i < n; ++i) p[i] = t[i];
  }
}
// x as fp16 holds it; the caller has saturated.
REPLAYSSM_INLINE V round_half_raw(V x) {
  return {_mm256_cvtph_ps(_mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT)),
          _mm256_cvtph_ps(_mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT))};
}
REPLAYSSM_INLINE void store_i8_raw(int8_t* p, V x) {  // |x| <= 127, integral
  int32_t t[16];
  _mm256_storeu_si256((__m256i*)t, _mm256_cvtps_epi32(x.a));
  _mm256_storeu_si256((__m256i*)(t + 8), _mm256_cvtps_epi32(x.b));
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(t[i]);
}
REPLAYSSM_INLINE void halves(V x, float out[8]) { _mm256_storeu_ps(out, _mm256_add_ps(x.a, x.b)); }

#else

// g++ lowers this to what the baseline set has.
typedef float Float16 __attribute__((vector_size(64)));
typedef int32_t Int16 __attribute__((vector_size(64)));

struct V {
  Float16 v;
};

REPLAYSSM_INLINE V zero() { return V{}; }
REPLAYSSM_INLINE V set1(float s) { return {s - Float16{}}; }
REPLAYSSM_INLINE V load(const float* p) {
  V r;
  std::memcpy(&r.v, p, sizeof(r.v));
  return r;
}
REPLAYSSM_INLINE void store(float* p, V a) { std::memcpy(p, &a.v, sizeof(a.v)); }
// Lanes [0, n) from memory, the rest zero; memory past n is not touched. 0 <= n <= 16.
REPLAYSSM_INLINE V load_n(const float* p, int n) {
  float t[16] = {};
  for (int i = 0; i < n; ++i) t[i] = p[i];
  return load(t);
}
REPLAYSSM_INLINE void store_n(float* p, V a, int n) {
  float t[16];
  store(t, a);
  for (int i = 0; i < n; ++i) p[i] = t[i];
}
REPLAYSSM_INLINE V load_bf16_n(const uint16_t* p, int n) {
  float t[16] = {};
  for (int i = 0; i < n; ++i) t[i] = bf16_to_float(p[i]);
  return load(t);
}
REPLAYSSM_INLINE V load_bf16(const uint16_t* p) { return load_bf16_n(p, 16); }
REPLAYSSM_INLINE V load_half_n(const uint16_t* p, int n) {
  float t[16] = {};
  for (int i = 0; i < n; ++i) t[i] = half_to_float(p[i]);
  return load(t);
}
REPLAYSSM_INLINE V load_half(const uint16_t* p) { return load_half_n(p, 16); }
REPLAYSSM_INLINE V load_i8(const int8_t* p) {
  float t[16];
  for (int i = 0; i < 16; ++i) t[i] = static_cast<float>(p[i]);
  return load(t);
}
REPLAYSSM_INLINE V add(V a, V b) { return {a.v + b.v}; }
REPLAYSSM_INLINE V sub(V a, V b) { return {a.v - b.v}; }
REPLAYSSM_INLINE V mul(V a, V b) { return {a.v * b.v}; }
REPLAYSSM_INLINE V div(V a, V b) { return {a.v / b.v}; }
REPLAYSSM_INLINE V fma(V a, V b, V c) { return {a.v * b.v + c.v}; }
// The second operand when the comparison is false or unordered: min(NaN, b) = b.
REPLAYSSM_INLINE V min(V a, V b) { return {a.v < b.v ? a.v : b.v}; }
REPLAYSSM_INLINE V max(V a, V b) { return {a.v > b.v ? a.v : b.v}; }
REPLAYSSM_INLINE V abs(V a) { return {(Float16)((Int16)a.v & 0x7fffffff)}; }
// a where x < y, else b (unordered: b).
REPLAYSSM_INLINE V select_less(V x, V y, V a, V b) { return {x.v < y.v ? a.v : b.v}; }
// a where x is NaN, else b.
REPLAYSSM_INLINE V select_nan(V x, V a, V b) { return {x.v != x.v ? a.v : b.v}; }
REPLAYSSM_INLINE int count_less(V x, V y) {
  const Int16 less = x.v < y.v;
  int n = 0;
  for (int i = 0; i < 16; ++i) n -= less[i];
  return n;
}
// Exact for |a| < 2^22, which is all that its users need; larger values come back as they are.
REPLAYSSM_INLINE V round_even(V a) {
  const V magic = set1(12582912.0f);  // 1.5 * 2^23
  const V rounded = sub(add(a, magic), magic);
  return select_less(abs(a), set1(4194304.0f), rounded, a);
}
// 2^n for integral n in [-126, 127].
REPLAYSSM_INLINE V exp2_int(V n) {
  return {(Float16)((__builtin_convertvector(n.v, Int16) + 127) << 23)};
}
REPLAYSSM_INLINE void store_bf16_raw(uint16_t* p, V a, int n) {
  for (int i = 0; i < n; ++i) p[i] = float_to_bf16(a.v[i]);
}
REPLAYSSM_INLINE void store_half_raw(uint16_t* p, V a, int n) {
  for (int i = 0; i < n; ++i) p[i] = float_to_half(a.v[i]);
}
// a as fp16 holds it; the caller has saturated.
REPLAYSSM_INLINE V round_half_raw(V a) {
  float t[16];
  for (int i = 0; i < 16; ++i) t[i] = half_to_float(float_to_half(a.v[i]));
  return load(t);
}
REPLAYSSM_INLINE void store_i8_raw(int8_t* p, V a) {  // |a| <= 127, integral
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}
REPLAYSSM_INLINE void halves(V a, float out[8]) {
  for (int i = 0; i < 8; ++i) out[i] = a.v[i] + a.v[i + 8];
}

#endif

REPLAYSSM_INLINE void store_bf16(uint16_t* p, V a, int n = 16) { store_bf16_raw(p, a, n); }

// Clamps to fp16's finite range; NaN stays NaN.
REPLAYSSM_INLINE V saturate_half(V a) {
  return select_nan(a, a, min(max(a, set1(-kHalfMax)), set1(kHalfMax)));
}
// Rounds to nearest even, saturating.
REPLAYSSM_INLINE void store_half(uint16_t* p, V a, int n = 16) {
  store_half_raw(p, saturate_half(a), n);
}

// a as fp16 holds it, saturated.
REPLAYSSM_INLINE V round_half(V a) { return round_half_raw(saturate_half(a)); }

REPLAYSSM_INLINE float reduce_add(V a) {
  float h[8];
  halves(a, h);
  return ((h[0] + h[4]) + (h[2] + h[6])) + ((h[1] + h[5]) + (h[3] + h[7]));
}

// out[n] = reduce_add(a[n]), the same tree for each.
REPLAYSSM_INLINE V reduce_add_16(const V a[16]) {
#if defined(REPLAYSSM_SIMD_AVX512)
  __m512 x[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {  // lane i + lane i + 8; two vectors become one
    const __m512 low = _mm512_shuffle_f32x4(a[2 * i].v, a[2 * i + 1].v, 0x44);
    const __m512 high = _mm512_shuffle_f32x4(a[2 * i].v, a[2 * i + 1].v, 0xee);
    x[i] = _mm512_add_ps(low, high);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // lane i + lane i + 4
    x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xdd));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {  // lane i + lane i + 2
    const __m512d p = _mm512_castps_pd(x[2 * i]);
    const __m512d q = _mm512_castps_pd(x[2 * i + 1]);
    x[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
  }
  const __m512 sums =
      _mm512_add_ps(_mm512_shuffle_ps(x[0], x[1], 0x88), _mm512_shuffle_ps(x[0], x[1], 0xdd));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return {_mm512_permutexvar_ps(order, sums)};
#else
  float sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = reduce_add(a[i]);
  return load(sums);
#endif
}

// e^x to about 1e-7 relative. x < -87.3 gives 0, x > 88.7 gives infinity, NaN gives NaN.
REPLAYSSM_INLINE V exp(V x) {
  const V n = round_even(mul(x, set1(1.44269504088896341f)));
  // x - n ln 2 in two parts, the first exact in the product.
  V r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  V p = set1(1.9841270e-4f);
  p = fma(p, r, set1(1.3888889e-3f));
  p = fma(p, r, set1(8.3333333e-3f));
  p = fma(p, r, set1(4.1666667e-2f));
  p = fma(p, r, set1(1.6666667e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  // 2^n in two factors, since n reaches 128.
  const V bounded = max(min(n, set1(128.0f)), set1(-126.0f));
  const V half = round_even(mul(bounded, set1(0.5f)));
  V y = mul(mul(p, exp2_int(half)), exp2_int(sub(bounded, half)));
  y = select_less(x, set1(-87.3f), zero(), y);
  y = select_less(set1(88.72f), x, set1(__builtin_inff()), y);
  return select_nan(x, x, y);
}

// log(1 + y) for y in [0, 1], by the series of 2 atanh(y / (2 + y)).
REPLAYSSM_INLINE V log1p_unit(V y) {
  const V s = div(y, add(y, set1(2.0f)));
  const V s2 = mul(s, s);
  V p = set1(2.0f / 15.0f);
  p = fma(p, s2, set1(2.0f / 13.0f));
  p = fma(p, s2, set1(2.0f / 11.0f));
  p = fma(p, s2, set1(2.0f / 9.0f));
  p = fma(p, s2, set1(2.0f / 7.0f));
  p = fma(p, s2, set1(2.0f / 5.0f));
  p = fma(p, s2, set1(2.0f / 3.0f));
  p = fma(p, s2, set1(2.0f));
  return mul(p, s);
}

// log(1 + e^x); x itself above 20.
REPLAYSSM_INLINE V softplus(V x) {
  const V tail = log1p_unit(exp(sub(zero(), abs(x))));
  const V y = add(max(x, zero()), tail);
  return select_nan(x, x, select_less(set1(20.0f), x, x, y));
}

REPLAYSSM_INLINE V sigmoid(V x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }

REPLAYSSM_INLINE V silu(V x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }

// One lane of the vector functions, so that a scalar use has the same bits.
REPLAYSSM_INLINE float exp1(float x) {
  float t[16];
  store(t, exp(set1(x)));
  return t[0];
}

}  // namespace replayssm::simd::REPLAYSSM_ISA
