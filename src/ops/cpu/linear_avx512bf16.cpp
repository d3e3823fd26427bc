#include <immintrin.h>

#include "ops/cpu/linear_kernels.h"

namespace replayssm::ops {
namespace {

using V = __m512;
constexpr int kWidth = 16;
template <int kRows>
constexpr int kVectors = 4;

inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, V a) { _mm512_storeu_ps(p, a); }
inline V set1(float x) { return _mm512_set1_ps(x); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
// The compiler's shift: g++ 12 warns of its own _mm512_slli_epi32.
using U = uint32_t __attribute__((vector_size(64)));
inline V pair_low(const char* p) { return (V)((U)_mm512_loadu_si512(p) << 16); }
inline V pair_high(const char* p) { return (V)((U)_mm512_loadu_si512(p) & 0xffff0000u); }
inline void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }
inline void prefetch_far(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }

#include "ops/cpu/linear_body.h"

struct Bf16Dot {
  using X = uint16_t;
  static constexpr int64_t kStep = 2;
  template <int kRows, int kVecs>
  static inline __attribute__((always_inline)) void add(V (&sum)[kRows][kVecs], const char* weight,
                                                        const uint16_t* x, int64_t x_stride,
                                                        int bytes) {
    __m512bh wv[kVecs];
    for (int v = 0; v < kVecs; ++v) wv[v] = (__m512bh)_mm512_loadu_si512(weight + v * 64);
    for (int r = 0; r < kRows; ++r) {
      uint32_t pair = 0;
      __builtin_memcpy(&pair, x + r * x_stride, bytes);
      const __m512bh xv = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
      for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], wv[v], xv);
    }
  }
  template <int kRows, int kVecs>
  static inline __attribute__((always_inline)) void step(V (&sum)[kRows][kVecs], const char* weight,
                                                         const uint16_t* x, int64_t x_stride) {
    add(sum, weight, x, x_stride, 4);
  }
  template <int kRows, int kVecs>
  static inline __attribute__((always_inline)) void tail(V (&sum)[kRows][kVecs], const char* weight,
                                                         const uint16_t* x, int64_t x_stride) {
    add(sum, weight, x, x_stride, 2);
  }
};

}  // namespace

void linear_avx512bf16(const PanelArgs& args) { panels<Bf16Dot>(args); }

}  // namespace replayssm::ops
