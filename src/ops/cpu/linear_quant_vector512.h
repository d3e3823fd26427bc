// Scales and decoders of 512 bits that both kernels use. Included inside an anonymous namespace
// after linear_vector512.h and linear_body.h.

using I = int32_t __attribute__((vector_size(64)));
using U16 = uint16_t __attribute__((vector_size(64)));

inline __m128i load_16(const char* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m256i load_32(const char* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline U load_words(const char* p) { return (U)_mm512_loadu_si512(p); }
inline V load_f16(const char* p) { return _mm512_cvtph_ps(load_32(p)); }
inline V load_bf16(const char* p) { return (V)((U)_mm512_cvtepu16_epi32(load_32(p)) << 16); }
inline V load_u8(const char* p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16(p))); }
inline V load_i8(const char* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(p))); }
// E4M3 as f16 is smaller by 2^8.
inline V load_e4m3(const char* p) {
  const __m256i words = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load_16(p)), 8);
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16(~0x4000));
  return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
}
inline V load_e8m0(const char* p) {
  const I exponent = (I)_mm512_cvtepu8_epi32(load_16(p));
  return (V)(exponent == 0 ? I{} + 0x400000 : exponent << 23);
}

struct NoTables {
  explicit NoTables(const QuantTables*) {}
};

// Pairs of E4M3 bytes as pairs in bf16, exactly: the exponent's bias goes from 7 to 127, and
// magnitudes below 8, which are subnormal, come from a table.
struct E4m3Tables {
  __m512i subnormal;
  explicit E4m3Tables(const QuantTables*) {
    alignas(64) static constexpr uint16_t kValues[32] = {0,      0x3b00, 0x3b80, 0x3bc0,
                                                         0x3c00, 0x3c20, 0x3c40, 0x3c60};
    subnormal = _mm512_load_si512(kValues);
  }
};
inline __m512i e4m3_pairs(const E4m3Tables& t, const char* p) {
  const __m512i wide = _mm512_cvtepu8_epi16(load_32(p));
  const __mmask32 small = _mm512_testn_epi16_mask(wide, _mm512_set1_epi16(0x78));
  const U16 shifted = (U16)wide << 4;
  const __m512i normal = (__m512i)((shifted & 0x7f0) + 0x3c00);
  const __m512i magnitude = _mm512_mask_permutexvar_epi16(normal, small, wide, t.subnormal);
  return (__m512i)((U16)magnitude | (((U16)wide << 8) & 0x8000));
}
