#include "ops/cpu/linear_quant_kernels.h"

namespace replayssm::ops {
namespace {

#include "ops/cpu/linear_vector128.h"
// The body needs the vector.
#include "ops/cpu/linear_body.h"

using I = int32_t __attribute__((vector_size(16)));
using X = float;
using XLane = V;
using Operand = V;
using DecodedWeight = Fp32Weight;
constexpr int64_t kStep = 1;
template <int kRows>
constexpr int kQuantVectors = 2;

inline float bits_to_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
inline float half_value(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return bits_to_float(sign | ((magnitude << 13) + (112u << 23)));
  const float small = static_cast<float>(magnitude) * 0x1p-24f;
  return sign != 0 ? -small : small;
}
inline float e4m3_number(uint8_t bits) {
  const uint32_t magnitude = bits & 0x7fu;
  const float value = magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9f
                                    : bits_to_float((magnitude << 20) + (120u << 23));
  return (bits & 0x80u) != 0 ? -value : value;
}

template <typename T, typename Value>
inline V each(const char* p, const Value& value) {
  T stored[kWidth];
  __builtin_memcpy(stored, p, sizeof(stored));
  return V{value(stored[0]), value(stored[1]), value(stored[2]), value(stored[3])};
}
inline V load_f16(const char* p) { return each<uint16_t>(p, half_value); }
inline V load_bf16(const char* p) {
  return each<uint16_t>(p,
                        [](uint16_t b) { return bits_to_float(static_cast<uint32_t>(b) << 16); });
}
inline V load_u8(const char* p) {
  return each<uint8_t>(p, [](uint8_t b) { return static_cast<float>(b); });
}
inline V load_i8(const char* p) {
  return each<int8_t>(p, [](int8_t b) { return static_cast<float>(b); });
}
inline V load_e4m3(const char* p) { return each<uint8_t>(p, e4m3_number); }
inline V load_e8m0(const char* p) {
  return each<uint8_t>(p, [](uint8_t b) {
    return bits_to_float(b == 0 ? 0x400000u : static_cast<uint32_t>(b) << 23);
  });
}

inline XLane spread(const X* x) { return set1(*x); }
inline V mul_add(Operand w, XLane x, V sum) { return fma(w, x, sum); }
inline void store_operand(char* to, Operand w) { __builtin_memcpy(to, &w, sizeof(w)); }

// The bits of input s of a unit of 8.
inline int nibble_shift(int s) { return s % 2 == 0 ? 2 * s : 14 + 2 * s; }

struct Nibble {
  static constexpr int kUnit = 8;
  static constexpr int64_t kUnitBytes = 256;
  static constexpr float kFactor = 1.0f;
  struct Tables {
    const float* values;
    explicit Tables(const QuantTables* tables) : values(tables->fp32) {}
  };
  struct Unit {
    U words;
    void load(const Tables&, const char* unit, int64_t column) {
      words = load_pairs(unit + 4 * column);
    }
    Operand operand(const Tables& t, int s) const {
      const U code = (words >> nibble_shift(s)) & 15u;
      return V{t.values[code[0]], t.values[code[1]], t.values[code[2]], t.values[code[3]]};
    }
  };
};

struct NoTables {
  explicit NoTables(const QuantTables*) {}
};

struct Int6 {
  static constexpr int kUnit = 16;
  static constexpr int64_t kUnitBytes = 768;
  static constexpr float kFactor = 1.0f;
  using Tables = NoTables;
  struct Unit {
    U low[2], high;
    void load(const Tables&, const char* unit, int64_t column) {
      low[0] = load_pairs(unit + 4 * column);
      low[1] = load_pairs(unit + 256 + 4 * column);
      high = load_pairs(unit + 512 + 4 * column);
    }
    Operand operand(const Tables&, int s) const {
      const U two = (high >> (s % 2 == 0 ? s : 15 + s)) & 3u;
      const U code = ((low[s / 8] >> nibble_shift(s % 8)) & 15u) | two << 4;
      return __builtin_convertvector((I)(code << 26) >> 26, V);
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
    uint8_t pairs[2 * kWidth];
    void load(const Tables&, const char* unit, int64_t column) {
      __builtin_memcpy(pairs, unit + 2 * column, sizeof(pairs));
    }
    Operand operand(const Tables&, int s) const {
      return V{e4m3_number(pairs[s]), e4m3_number(pairs[2 + s]), e4m3_number(pairs[4 + s]),
               e4m3_number(pairs[6 + s])};
    }
  };
};

#include "ops/cpu/linear_quant_body.h"

}  // namespace

void linear_quant_portable(const QuantArgs& args) { quant_panels(args); }

}  // namespace replayssm::ops
