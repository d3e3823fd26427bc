// Weight of linear_body.h by the native product of bf16 pairs. Included inside an anonymous
// namespace.

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
