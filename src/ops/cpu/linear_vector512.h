// The 512-bit vector of linear_body.h. Included inside an anonymous namespace.

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
