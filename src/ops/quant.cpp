#include "ops/quant.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "replay/convert.h"

namespace replayssm::ops {

int64_t QuantFormat::scale_bytes() const {
  switch (scale) {
    case GroupScale::kNone:
      return 0;
    case GroupScale::kF16:
    case GroupScale::kBF16:
      return 2;
    case GroupScale::kF32:
      return 4;
    default:
      return 1;
  }
}

int64_t QuantFormat::min_bytes() const {
  if (min == GroupMin::kNone) return 0;
  return min == GroupMin::kAdded ? 2 : 1;
}

QuantMatrix QuantMatrix::slice_rows(int64_t first, int64_t count) const {
  REPLAYSSM_CHECK(first >= 0 && count > 0 && first + count <= rows, first, " + ", count, " of ",
                  rows);
  return {format, count, cols,
          [read = read, first](int64_t row, QuantRow& out) { read(first + row, out); }};
}

QuantRowBuffer::QuantRowBuffer(const QuantFormat& format, int64_t cols)
    : n_groups_((cols + format.group - 1) / format.group),
      codes_(static_cast<size_t>(cols)),
      scales_(static_cast<size_t>(n_groups_ * format.scale_bytes())),
      mins_(static_cast<size_t>(n_groups_ * format.min_bytes())) {
  if (format.super) super_.resize(static_cast<size_t>((cols + kSuperBlock - 1) / kSuperBlock * 2));
  row_.codes = codes_.data();
  row_.scales = scales_.data();
  row_.mins = mins_.data();
  row_.super = super_.data();
  row_.super_min = super_.data() + super_.size() / 2;
}

float e4m3_value(uint8_t bits) {
  const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000u);
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

float code_value(const QuantFormat& format, uint8_t code) {
  switch (format.codes) {
    case Codes::kNibble:
      return format.table[code];
    case Codes::kE4m3:
      return e4m3_value(code);
    default:
      return static_cast<int8_t>(code);
  }
}

float scale_value(GroupScale scale, const std::byte* stored) {
  uint16_t half = 0;
  float value = 1.0f;
  switch (scale) {
    case GroupScale::kNone:
      return 1.0f;
    case GroupScale::kF16:
      std::memcpy(&half, stored, 2);
      return half_to_float(half);
    case GroupScale::kBF16:
      std::memcpy(&half, stored, 2);
      return bf16_to_float(half);
    case GroupScale::kF32:
      std::memcpy(&value, stored, 4);
      return value;
    case GroupScale::kU8:
      return static_cast<uint8_t>(*stored);
    case GroupScale::kI8:
      return static_cast<int8_t>(*stored);
    case GroupScale::kE4m3:
      return e4m3_value(static_cast<uint8_t>(*stored));
    case GroupScale::kE8m0:
      return std::ldexp(1.0f, static_cast<int>(*stored) - 127);
  }
  return value;
}

void dequantise_row(const QuantFormat& format, int64_t cols, const QuantRow& row, float* out) {
  const int64_t scale_bytes = format.scale_bytes(), min_bytes = format.min_bytes();
  for (int64_t i = 0; i < cols; ++i) {
    const int64_t group = i / format.group;
    float scale = scale_value(format.scale, row.scales + group * scale_bytes);
    if (format.super) scale *= half_to_float(row.super[i / kSuperBlock]);
    const float value = code_value(format, row.codes[i]);
    const std::byte* min = row.mins + group * min_bytes;
    float weight = 0.0f;
    switch (format.min) {
      case GroupMin::kNone:
        weight = scale * value;
        break;
      case GroupMin::kAdded:
        weight = scale * value + scale_value(GroupScale::kF16, min);
        break;
      case GroupMin::kSuper:
        weight = scale * value -
                 half_to_float(row.super_min[i / kSuperBlock]) * static_cast<float>(*min);
        break;
      case GroupMin::kZero:
        weight = scale * (value - static_cast<float>(*min));
        break;
    }
    out[i] = format.output_scale ? weight * row.output_scale : weight;
  }
}

}  // namespace replayssm::ops
