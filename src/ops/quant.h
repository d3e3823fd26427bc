// Matrices of few bits in the one form that the kernels take. Every published format maps onto it
// without loss: a reader (model/formats) gives rows, Linear::pack lays them into panels.
//
//   weight[o, i] = output_scale[o] * (scale * value(code) - min)
//
// where scale and min belong to the group of inputs that i is in. A format fixes what a code is,
// how many inputs share a group, and how scale and min are stored:
//
//   value   kNibble  table[code], any 16 integers of 8 bits (int4, doubled E2M1, IQ4's codebook)
//           kInt6    the code as a signed number, -32..31
//           kInt8    the code as a signed number
//           kE4m3    the code's bits as FP8 E4M3
//   scale   one stored number per group; with `super` times an f16 per 256 inputs
//   min     kAdded   -m, m an f16 per group                                     (Q4_1, Q5_1)
//           kSuper   an unsigned byte per group times an f16 per 256 inputs     (Q4_K, Q5_K)
//           kZero    scale times a byte per group, the code that stands for 0   (AWQ, GPTQ, CT)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "ops/quant_kinds.h"

namespace replayssm::ops {

constexpr int64_t kSuperBlock = 256;

struct QuantFormat {
  Codes codes = Codes::kNibble;
  std::array<int8_t, 16> table{};  // kNibble
  // Inputs of a group: 16, 32, 64 or 128. Without a scale 128, and no min.
  int32_t group = 128;
  GroupScale scale = GroupScale::kNone;
  GroupMin min = GroupMin::kNone;
  bool super = false;
  bool output_scale = false;

  bool operator==(const QuantFormat&) const = default;
  int64_t scale_bytes() const;  // of a group
  int64_t min_bytes() const;
};

// One output's weights. The last group may be short.
struct QuantRow {
  uint8_t* codes = nullptr;       // [cols]
  std::byte* scales = nullptr;    // [groups]
  std::byte* mins = nullptr;      // [groups]
  uint16_t* super = nullptr;      // [super blocks], f16
  uint16_t* super_min = nullptr;  // [super blocks], f16
  float output_scale = 1.0f;
};

// `read` fills a row whose buffers are of the format's sizes; several threads may call it at once.
struct QuantMatrix {
  QuantFormat format;
  int64_t rows = 0;
  int64_t cols = 0;
  std::function<void(int64_t row, QuantRow& out)> read;

  QuantMatrix slice_rows(int64_t first, int64_t count) const;
};

// Buffers of one row.
class QuantRowBuffer {
 public:
  QuantRowBuffer(const QuantFormat& format, int64_t cols);
  QuantRow& row() { return row_; }
  int64_t n_groups() const { return n_groups_; }

 private:
  int64_t n_groups_;
  std::vector<uint8_t> codes_;
  std::vector<std::byte> scales_;
  std::vector<std::byte> mins_;
  std::vector<uint16_t> super_;
  QuantRow row_;
};

float e4m3_value(uint8_t bits);

// The integer or FP8 value of a code.
float code_value(const QuantFormat& format, uint8_t code);
// A stored scale without its super scale.
float scale_value(GroupScale scale, const std::byte* stored);
// What a row's weights are, in fp32: exact but for the roundings of scale * value - min and of the
// product with output_scale.
void dequantise_row(const QuantFormat& format, int64_t cols, const QuantRow& row, float* out);

}  // namespace replayssm::ops
