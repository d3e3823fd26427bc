#include <immintrin.h>

#include "ops/cpu/linear_quant_kernels.h"

namespace replayssm::ops {
namespace {

#include "ops/cpu/linear_vector512.h"
// The body needs the vector, and the next headers the body.
#include "ops/cpu/linear_body.h"
// So they stay in this order.
#include "ops/cpu/linear_quant_vector512.h"

using X = float;
using XLane = V;
using Operand = V;
using DecodedWeight = Fp32Weight;
constexpr int64_t kStep = 1;
template <int kRows>
constexpr int kQuantVectors = kRows <= 3 ? 4 : 2;

inline XLane spread(const X* x) { return _mm512_set1_ps(*x); }
inline V mul_add(Operand w, XLane x, V sum) { return fma(w, x, sum); }
inline void store_operand(char* to, Operand w) { _mm512_storeu_ps(to, w); }

struct Nibble {
  static constexpr int kUnit = 8;
  static constexpr int64_t kUnitBytes = 256;
  static constexpr float kFactor = 1.0f;
  struct Tables {
    V values;
    explicit Tables(const QuantTables* tables) : values(_mm512_load_ps(tables->fp32)) {}
  };
  struct Unit {
    U words;
    void load(const Tables&, const char* unit, int64_t column) {
      words = load_words(unit + 4 * column);
    }
    // The permutation takes the low four bits of its index.
    Operand operand(const Tables& t, int s) const {
      const int shift = s % 2 == 0 ? 2 * s : 14 + 2 * s;
      return _mm512_permutexvar_ps((__m512i)(words >> shift), t.values);
    }
  };
};

struct Int6 {
  static constexpr int kUnit = 16;
  static constexpr int64_t kUnitBytes = 768;
  static constexpr float kFactor = 0x1p-26f;
  using Tables = NoTables;
  struct Unit {
    U low[2], high;
    void load(const Tables&, const char* unit, int64_t column) {
      low[0] = load_words(unit + 4 * column);
      low[1] = load_words(unit + 256 + 4 * column);
      high = load_words(unit + 512 + 4 * column);
    }
    // The code in the upper bits: larger by 2^26.
    Operand operand(const Tables&, int s) const {
      const int nibble = s % 2 == 0 ? 2 * (s % 8) : 14 + 2 * (s % 8);
      const int two = s % 2 == 0 ? s : 15 + s;
      const U l = (low[s / 8] << (28 - nibble)) >> 2, h = high << (30 - two);
      const U code = (l & 0x3c000000u) | (h & 0xc0000000u);
      return _mm512_cvtepi32_ps((__m512i)code);
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
  using Tables = E4m3Tables;
  struct Unit {
    U pairs;
    void load(const Tables& t, const char* unit, int64_t column) {
      pairs = (U)e4m3_pairs(t, unit + 2 * column);
    }
    Operand operand(const Tables&, int s) const {
      return s == 0 ? (V)(pairs << 16) : (V)(pairs & 0xffff0000u);
    }
  };
};

#include "ops/cpu/linear_quant_body.h"

}  // namespace

void linear_quant_avx512(const QuantArgs& args) { quant_panels(args); }

}  // namespace replayssm::ops
