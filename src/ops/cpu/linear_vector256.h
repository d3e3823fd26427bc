// The 256-bit vector of linear_body.h. Included inside an anonymous namespace.

using V = __m256;
constexpr int kWidth = 8;
template <int kRows>
constexpr int kVectors = kRows == 1   ? 8
                         : kRows <= 3 ? 4
                                      : 2;

inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, V a) { _mm256_storeu_ps(p, a); }
inline V set1(float x) { return _mm256_set1_ps(x); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline __m256i load_pairs(const char* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline V pair_low(const char* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(load_pairs(p), 16));
}
inline V pair_high(const char* p) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(load_pairs(p), mask));
}
inline void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }
inline void prefetch_far(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }
