#include <immintrin.h>

#include "ops/cpu/linear_quant_kernels.h"

namespace replayssm::ops {
namespace {

#include "ops/cpu/linear_vector512.h"
// The body needs the vector, and the next headers the body.
#include "ops/cpu/linear_body.h"
// So they stay in this order.
#include "ops/cpu/linear_bf16dot.h"
#include "ops/cpu/linear_quant_vector512.h"

using X = uint16_t;
using XLane = __m512bh;
using Operand = __m512bh;
using DecodedWeight = Bf16Dot;
constexpr int64_t kStep = 2;
template <int kRows>
constexpr int kQuantVectors = kRows <= 4 ? 4 : 2;

inline XLane spread(const X* x) {
  int pair;
  __builtin_memcpy(&pair, x, 4);
  return (__m512bh)_mm512_set1_epi32(pair);
}
inline V mul_add(Operand w, XLane x, V sum) { return _mm512_dpbf16_ps(sum, w, x); }
inline void store_operand(char* to, Operand w) { _mm512_storeu_si512(to, (__m512i)w); }

// A 16-bit lane holds four codes; the permutation takes the low five bits of its index, and both
// halves of the table are alike.
struct Nibble {
  static constexpr int kUnit = 8;
  static constexpr int64_t kUnitBytes = 256;
  static constexpr float kFactor = 1.0f;
  struct Tables {
    __m512i values;
    explicit Tables(const QuantTables* tables) : values(_mm512_load_si512(tables->bf16)) {}
  };
  struct Unit {
    U16 words[2];  // the second from a byte later: down by two codes without a shift
    void load(const Tables&, const char* unit, int64_t column) {
      words[0] = (U16)load_words(unit + 4 * column);
      words[1] = (U16)load_words(unit + 4 * column + 1);
    }
    Operand operand(const Tables& t, int s) const {
      const U16 down = words[s / 2] >> (4 * (s % 2));
      return (__m512bh)_mm512_permutexvar_epi16((__m512i)down, t.values);
    }
  };
};

// The permutation of two registers takes the low six bits of its index.
struct Int6 {
  static constexpr int kUnit = 16;
  static constexpr int64_t kUnitBytes = 768;
  static constexpr float kFactor = 1.0f;
  struct Tables {
    __m512i positive, negative;
    explicit Tables(const QuantTables*) {
      alignas(64) uint16_t values[64];
      for (int i = 0; i < 64; ++i) {
        const float value = static_cast<float>(i < 32 ? i : i - 64);
        uint32_t bits;
        __builtin_memcpy(&bits, &value, 4);
        values[i] = static_cast<uint16_t>(bits >> 16);
      }
      positive = _mm512_load_si512(values);
      negative = _mm512_load_si512(values + 32);
    }
  };
  struct Unit {
    U16 low[2], high;
    void load(const Tables&, const char* unit, int64_t column) {
      low[0] = (U16)load_words(unit + 4 * column);
      low[1] = (U16)load_words(unit + 256 + 4 * column);
      high = (U16)load_words(unit + 512 + 4 * column);
    }
    Operand operand(const Tables& t, int s) const {
      const U16 nibble = low[s / 4] >> (4 * (s % 4));
      const U16 two = s < 2 ? high << (4 - 2 * s) : high >> (2 * s - 4);
      const __m512i index =
          _mm512_ternarylogic_epi32(_mm512_set1_epi16(15), (__m512i)nibble, (__m512i)two, 0xca);
      return (__m512bh)_mm512_permutex2var_epi16(t.positive, index, t.negative);
    }
  };
};

// Bytes through fp32: small integers are exact in its upper half.
struct Int8 {
  static constexpr int kUnit = 2;
  static constexpr int64_t kUnitBytes = 128;
  static constexpr float kFactor = 1.0f;
  using Tables = NoTables;
  struct Unit {
    const char* at;
    void load(const Tables&, const char* unit, int64_t column) { at = unit + column; }
    Operand operand(const Tables&, int) const {
      const U even = (U)load_i8(at), odd = (U)load_i8(at + kPanelWidth);
      return (__m512bh)(odd | even >> 16);
    }
  };
};

struct E4m3 {
  static constexpr int kUnit = 2;
  static constexpr int64_t kUnitBytes = 128;
  static constexpr float kFactor = 1.0f;
  using Tables = E4m3Tables;
  struct Unit {
    __m512i pairs;
    void load(const Tables& t, const char* unit, int64_t column) {
      pairs = e4m3_pairs(t, unit + 2 * column);
    }
    Operand operand(const Tables&, int) const { return (__m512bh)pairs; }
  };
};

#include "ops/cpu/linear_quant_body.h"

}  // namespace

void linear_quant_avx512bf16(const QuantArgs& args) { quant_panels(args); }

}  // namespace replayssm::ops
