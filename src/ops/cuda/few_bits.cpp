#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "ops/cuda/few_bits_cuda.h"

namespace replayssm::ops::cuda {
namespace {

constexpr std::array<int8_t, 16> kE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int kFp4Bias = 245;  // the exponent field of a scale of 1 for kE8m0

int32_t lowest(const QuantFormat& format) { return *std::ranges::min_element(format.table); }
int32_t highest(const QuantFormat& format) { return *std::ranges::max_element(format.table); }

bool is_iq4(const QuantFormat& format) {
  for (size_t i = 0; i < 8; ++i) {
    if (format.table[i] >= 0 || format.table[i + 8] < 0 || format.table[i + 8] > 126) return false;
  }
  return true;
}

std::optional<FewCodes> codes_of(const QuantFormat& f) {
  const bool fp4_scale = f.scale == GroupScale::kE4m3 || f.scale == GroupScale::kE8m0;
  if (fp4_scale || f.scale == GroupScale::kF32) {
    const bool fp4 = fp4_scale && f.codes == Codes::kNibble && f.table == kE2m1 &&
                     f.min == GroupMin::kNone && !f.super;
    return fp4 ? std::optional(FewCodes::kE2m1) : std::nullopt;
  }
  const bool narrow = f.group < 32;
  if (narrow && (f.scale_bytes() != 1 || f.min != GroupMin::kNone)) return std::nullopt;
  switch (f.codes) {
    case Codes::kNibble:
      if (narrow) return FewCodes::kInt6;
      if (highest(f) - lowest(f) <= 15) return FewCodes::kInt4;
      if (is_iq4(f) && f.min == GroupMin::kNone) return FewCodes::kIq4;
      return std::nullopt;
    case Codes::kInt6:
      return f.min != GroupMin::kZero ? std::optional(FewCodes::kInt6) : std::nullopt;
    case Codes::kInt8:
      return !narrow && f.min == GroupMin::kNone ? std::optional(FewCodes::kInt8) : std::nullopt;
    case Codes::kE4m3:
      return std::nullopt;
  }
  return std::nullopt;
}

// The code of output o and input i of a unit, in zeroed memory.
void put_code(FewCodes kind, uint8_t* codes, int64_t o, int64_t i, uint32_t code) {
  const int64_t s = i / 16, lane = 4 * (o % 8) + i % 16 / 4;
  const int64_t h = i % 2, j = 2 * (i % 4 / 2) + o / 8;
  const auto add = [&](int64_t word, uint32_t bits) {
    uint8_t* const at = codes + word / 4 * 512 + lane * 16 + word % 4 * 4;
    uint32_t value;
    std::memcpy(&value, at, 4);
    value |= bits;
    std::memcpy(at, &value, 4);
  };
  switch (kind) {
    case FewCodes::kInt4:
    case FewCodes::kE2m1:
      return add(s, code << (16 * h + 4 * j));
    case FewCodes::kIq4:
      return add(s, code << (16 * (j / 2) + 8 * (j % 2) + 4 * h));
    case FewCodes::kInt6:
      add(s, (code & 15) << (16 * h + 4 * j));
      return add(8 + s / 2, code >> 4 << (16 * h + 8 * (s % 2) + 2 * j));
    case FewCodes::kInt8:
      return add(2 * s + j / 2, code << (8 * (2 * h + j % 2)));
  }
}

// Of E2M1 a group's scale as a byte, and whether its codes change sign or are all 0.
struct Fp4Scale {
  uint8_t byte = 0;
  bool negative = false;
  bool zero = false;
};

Fp4Scale from_e4m3(uint8_t bits) {
  Fp4Scale out;
  out.negative = (bits & 0x80) != 0;
  const float value = std::abs(e4m3_value(bits));
  out.zero = value == 0.0f;
  if (out.zero) return out;
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);  // [0.5, 1)
  const int mantissa = static_cast<int>(fraction * 16.0f) - 8;
  out.byte = static_cast<uint8_t>((exponent - 1 + 10) * 8 + mantissa);
  return out;
}

class TilePacker {
 public:
  TilePacker(const FewBits& form, int64_t n_in, uint8_t* to)
      : form_(form),
        n_in_(n_in),
        to_(to),
        n_groups_((n_in + form.format.group - 1) / form.format.group) {}

  // Returns the output's factor.
  float put(int64_t o, const QuantRow& row) {
    std::vector<Fp4Scale> fp4;
    float factor = form_.format.output_scale ? row.output_scale : 1.0f;
    if (form_.codes == FewCodes::kE2m1) {
      int shift = 9;  // 2 as tables are doubled, 2^8 as products are 2^-8 of what they should be
      fp4 = fp4_scales(row, shift);
      factor = std::ldexp(factor, shift);
    }
    for (int64_t i = 0; i < n_in_; ++i) {
      const Fp4Scale* scale =
          fp4.empty() ? nullptr : &fp4[static_cast<size_t>(i / form_.format.group)];
      put_code(form_.codes, unit(i / kFewUnit), o, i % kFewUnit, code_of(row.codes[i], scale));
    }
    const int64_t scale_bytes = form_.format.scale_bytes(), min_bytes = form_.format.min_bytes();
    const int64_t scales_at = form_.codes_bytes(), mins_at = scales_at + 8 * form_.scale_record();
    for (int64_t g = 0; g < n_groups_; ++g) {
      const int64_t u = g / form_.groups(), index = (o / 8) * form_.groups() + g % form_.groups();
      uint8_t* const scale =
          unit(u) + scales_at + (o % 8) * form_.scale_record() + index * scale_bytes;
      uint8_t* const min = unit(u) + mins_at + (o % 8) * form_.min_record() + index * min_bytes;
      if (!fp4.empty()) {
        *scale = fp4[static_cast<size_t>(g)].byte;
      } else if (scale_bytes > 0) {
        std::memcpy(scale, row.scales + g * scale_bytes, static_cast<size_t>(scale_bytes));
      }
      if (form_.format.min == GroupMin::kZero) {
        const int zero = static_cast<int>(row.mins[g]) - lowest(form_.format);
        REPLAYSSM_CHECK(zero >= 0 && zero < 128, zero);
        *min = static_cast<uint8_t>(zero);
      } else if (min_bytes > 0) {
        std::memcpy(min, row.mins + g * min_bytes, static_cast<size_t>(min_bytes));
      }
    }
    put_super(o, row);
    return factor;
  }

 private:
  uint8_t* unit(int64_t u) const { return to_ + u * form_.unit_bytes(); }

  uint32_t code_of(uint8_t code, const Fp4Scale* scale) const {
    switch (form_.codes) {
      case FewCodes::kInt4:
        return static_cast<uint32_t>(form_.format.table[code] - lowest(form_.format));
      case FewCodes::kE2m1:
        if (scale->zero) return 0;
        return scale->negative ? code ^ 8u : code;
      case FewCodes::kIq4:
        return code;
      case FewCodes::kInt6:
        return static_cast<uint32_t>(static_cast<int>(code_value(form_.format, code)) + 32);
      case FewCodes::kInt8:
        return code;
    }
    return 0;
  }

  // Adds to `shift` what the output's scales have in common.
  std::vector<Fp4Scale> fp4_scales(const QuantRow& row, int& shift) const {
    std::vector<Fp4Scale> out(static_cast<size_t>(n_groups_));
    const auto bits = [&](size_t g) { return static_cast<uint8_t>(row.scales[g]); };
    if (form_.format.scale == GroupScale::kE4m3) {
      for (size_t g = 0; g < out.size(); ++g) out[g] = from_e4m3(bits(g));
      return out;
    }
    int largest = 0;  // of the groups that are not all 0
    for (size_t g = 0; g < out.size(); ++g) {
      const int64_t first = static_cast<int64_t>(g) * form_.format.group;
      const int64_t last = std::min<int64_t>(first + form_.format.group, n_in_);
      out[g].zero =
          std::all_of(row.codes + first, row.codes + last, [](uint8_t c) { return (c & 7) == 0; });
      if (!out[g].zero) largest = std::max<int>(largest, bits(g));
    }
    for (size_t g = 0; g < out.size(); ++g) {
      // What is 2^-117 and less of the largest is lost.
      out[g].zero = out[g].zero || largest - bits(g) > kFp4Bias - 128;
      if (!out[g].zero) out[g].byte = static_cast<uint8_t>(kFp4Bias - (largest - bits(g)));
    }
    shift += largest - 127;
    return out;
  }

  void put_super(int64_t o, const QuantRow& row) {
    if (!form_.format.super) return;
    const int64_t record = form_.super_record();
    const int64_t at = form_.codes_bytes() + 8 * (form_.scale_record() + form_.min_record());
    for (int64_t u = 0; u < few_units(n_in_); ++u) {
      uint8_t* const to = unit(u) + at + (o % 8) * record + 2 * (o / 8);
      std::memcpy(to, row.super + u * kFewUnit / kSuperBlock, 2);
      if (record == 8) std::memcpy(to + 4, row.super_min + u * kFewUnit / kSuperBlock, 2);
    }
  }

  const FewBits& form_;
  int64_t n_in_;
  uint8_t* to_;
  int64_t n_groups_;
};

}  // namespace

int32_t FewBits::scale_record() const {
  return static_cast<int32_t>(2 * groups() * format.scale_bytes());
}
int32_t FewBits::min_record() const {
  return static_cast<int32_t>(2 * groups() * format.min_bytes());
}
int32_t FewBits::super_record() const {
  if (!format.super) return 0;
  return format.min == GroupMin::kSuper ? 8 : 4;
}
int64_t FewBits::codes_bytes() const {
  return codes == FewCodes::kInt8 ? 2048 : codes == FewCodes::kInt6 ? 1536 : 1024;
}
int64_t FewBits::unit_bytes() const {
  return codes_bytes() + 8 * (scale_record() + min_record() + super_record());
}

std::optional<FewBits> few_bits_of(const QuantFormat& format, int64_t n_in) {
  const std::optional<FewCodes> codes = codes_of(format);
  if (!codes || n_in % 16 != 0) return std::nullopt;
  FewBits out{format, *codes};
  if (*codes == FewCodes::kInt4) out.zero = -lowest(format);
  return out;
}

int64_t few_bits_bytes(const FewBits& form, int64_t n_out, int64_t n_in) {
  return few_tiles(n_out) * few_units(n_in) * form.unit_bytes();
}

void pack_few_bits(const FewBits& form, const QuantMatrix& matrix, int64_t tile, uint8_t* to,
                   float* factors) {
  std::memset(to, 0, static_cast<size_t>(few_units(matrix.cols) * form.unit_bytes()));
  QuantRowBuffer buffer(form.format, matrix.cols);
  TilePacker packer(form, matrix.cols, to);
  const int64_t n = std::min(kFewTile, matrix.rows - tile * kFewTile);
  for (int64_t o = 0; o < n; ++o) {
    matrix.read(tile * kFewTile + o, buffer.row());
    factors[o] = packer.put(o, buffer.row());
  }
}

}  // namespace replayssm::ops::cuda
