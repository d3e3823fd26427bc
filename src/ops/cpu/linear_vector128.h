// The 128-bit vector of linear_body.h. Included inside an anonymous namespace.

// The compiler's own vectors: SSE2, NEON or scalar code, the same sums.
using V = float __attribute__((vector_size(16)));
using U = uint32_t __attribute__((vector_size(16)));
constexpr int kWidth = 4;
template <int kRows>
constexpr int kVectors = kRows == 1   ? 8
                         : kRows <= 3 ? 4
                                      : 2;

inline V load(const float* p) {
  V a;
  __builtin_memcpy(&a, p, sizeof(a));
  return a;
}
inline void store(float* p, V a) { __builtin_memcpy(p, &a, sizeof(a)); }
inline V set1(float x) { return V{x, x, x, x}; }
inline V fma(V a, V b, V c) { return a * b + c; }
inline U load_pairs(const char* p) {
  U a;
  __builtin_memcpy(&a, p, sizeof(a));
  return a;
}
inline V pair_low(const char* p) { return (V)(load_pairs(p) << 16); }
inline V pair_high(const char* p) { return (V)(load_pairs(p) & 0xffff0000u); }
inline void prefetch(const char* p) { __builtin_prefetch(p, 0, 3); }
inline void prefetch_far(const char* p) { __builtin_prefetch(p, 0, 2); }
