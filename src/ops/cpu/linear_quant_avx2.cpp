#include <immintrin.h>

#include "ops/cpu/linear_quant_kernels.h"

namespace replayssm::ops {
namespace {

#include "ops/cpu/linear_vector256.h"
// The body needs the vector.
#include "ops/cpu/linear_body.h"

using U = uint32_t __attribute__((vector_size(32)));
using I = int32_t __attribute__((vector_size(32)));
using X = float;
using XLane = V;
using Operand = V;
using DecodedWeight = Fp32Weight;
constexpr int64_t kStep = 1;
template <int kRows>
constexpr int kQuantVectors = kRows <= 4 ? 2 : 1;

inline __m128i load_8(const char* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
inline __m128i load_16(const char* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline V load_f16(const char* p) { return _mm256_cvtph_ps(load_16(p)); }
inline V load_bf16(const char* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(p)), 16));
}
inline V load_u8(const char* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(p))); }
inline V load_i8(const char* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8(p))); }
// E4M3 in the upper bytes of words: as f16 it is smaller by 2^8.
inline V e4m3_words(__m128i words) {
  const __m128i half = _mm_and_si128(_mm_srai_epi16(words, 1), _mm_set1_epi16(~0x4000));
  return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
}
inline V load_e4m3(const char* p) { return e4m3_words(_mm_unpacklo_epi8(__m128i{}, load_8(p))); }
inline V load_e8m0(const char* p) {
  const I exponent = (I)_mm256_cvtepu8_epi32(load_8(p));
  return (V)(exponent == 0 ? I{} + 0x400000 : exponent << 23);
}

inline XLane spread(const X* x) { return _mm256_broadcast_ss(x); }
inline V mul_add(Operand w, XLane x, V sum) { return fma(w, x, sum); }
inline void store_operand(char* to, Operand w) { store(reinterpret_cast<float*>(to), w); }

struct Nibble {
  static constexpr int kUnit = 8;
  static constexpr int64_t kUnitBytes = 256;
  static constexpr float kFactor = 0x1p-24f;
  struct Tables {
    __m256i bytes;
    __m256i to_top[4];
    explicit Tables(const QuantTables* tables)
        : bytes(_mm256_load_si256(reinterpret_cast<const __m256i*>(tables->bytes))) {
      for (int b = 0; b < 4; ++b) {
        const U from = U{0, 4, 8, 12, 0, 4, 8, 12} + static_cast<uint32_t>(b);
        to_top[b] = (__m256i)(from << 24 | 0x808080u);
      }
    }
  };
  // Values as bytes: of nibbles 0, 2, 4, 6 of each word, and of 1, 3, 5, 7. One at a time goes to
  // the top of its word, so that the number that the word converts to is larger by 2^24.
  struct Unit {
    __m256i values[2];
    void load(const Tables& t, const char* unit, int64_t column) {
      const U words = (U)load_pairs(unit + 4 * column);
      const U mask = U{} + 0x0f0f0f0fu;
      values[0] = _mm256_shuffle_epi8(t.bytes, (__m256i)(words & mask));
      values[1] = _mm256_shuffle_epi8(t.bytes, (__m256i)((words >> 4) & mask));
    }
    Operand operand(const Tables& t, int s) const {
      const int nibble = s / 2 + 4 * (s % 2);
      return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(values[nibble % 2], t.to_top[nibble / 2]));
    }
  };
};

struct NoTables {
  explicit NoTables(const QuantTables*) {}
};

struct Int6 {
  static constexpr int kUnit = 16;
  static constexpr int64_t kUnitBytes = 768;
  static constexpr float kFactor = 0x1p-26f;
  using Tables = NoTables;
  struct Unit {
    U low[2], high;
    void load(const Tables&, const char* unit, int64_t column) {
      low[0] = (U)load_pairs(unit + 4 * column);
      low[1] = (U)load_pairs(unit + 256 + 4 * column);
      high = (U)load_pairs(unit + 512 + 4 * column);
    }
    // The code in the upper bits: larger by 2^26.
    Operand operand(const Tables&, int s) const {
      const int nibble = s % 2 == 0 ? 2 * (s % 8) : 14 + 2 * (s % 8);
      const int two = s % 2 == 0 ? s : 15 + s;
      const U l = (low[s / 8] << (28 - nibble)) >> 2, h = high << (30 - two);
      const U code = (l & 0x3c000000u) | (h & 0xc0000000u);
      return _mm256_cvtepi32_ps((__m256i)code);
    }
  };
};

struct Int8 {
  static constexpr int kUnit = 2;
  static constexpr int64_t kUnitBytes = 128;
  static constexpr float kFactor = 1.0f;
  using Tables = NoTables;
  struct Unit {
    const char* at;
    void load(const Tables&, const char* unit, int64_t column) { at = unit + column; }
    Operand operand(const Tables&, int s) const { return load_i8(at + s * kPanelWidth); }
  };
};

struct E4m3 {
  static constexpr int kUnit = 2;
  static constexpr int64_t kUnitBytes = 128;
  static constexpr float kFactor = 1.0f;
  using Tables = NoTables;
  struct Unit {
    __m128i pairs;
    void load(const Tables&, const char* unit, int64_t column) {
      pairs = load_16(unit + 2 * column);
    }
    Operand operand(const Tables&, int s) const {
      const __m128i upper = _mm_set1_epi16(static_cast<int16_t>(0xff00));
      return e4m3_words(s == 0 ? _mm_slli_epi16(pairs, 8) : _mm_and_si128(pairs, upper));
    }
  };
};

#include "ops/cpu/linear_quant_body.h"

}  // namespace

void linear_quant_avx2(const QuantArgs& args) { quant_panels(args); }

}  // namespace replayssm::ops
