#include "model/formats/blocks.h"

#include <cstring>

#include "core/error.h"
#include "replay/convert.h"

namespace replayssm {
namespace {

using ops::Codes;
using ops::GroupMin;
using ops::GroupScale;
using ops::QuantFormat;
using ops::QuantRow;

constexpr BlockShape kShapes[] = {
    {BlockType::kF32, "F32", 1, 4},         {BlockType::kF16, "F16", 1, 2},
    {BlockType::kQ4_0, "Q4_0", 32, 18},     {BlockType::kQ4_1, "Q4_1", 32, 20},
    {BlockType::kQ5_0, "Q5_0", 32, 22},     {BlockType::kQ5_1, "Q5_1", 32, 24},
    {BlockType::kQ8_0, "Q8_0", 32, 34},     {BlockType::kQ2_K, "Q2_K", 256, 84},
    {BlockType::kQ3_K, "Q3_K", 256, 110},   {BlockType::kQ4_K, "Q4_K", 256, 144},
    {BlockType::kQ5_K, "Q5_K", 256, 176},   {BlockType::kQ6_K, "Q6_K", 256, 210},
    {BlockType::kIQ4_NL, "IQ4_NL", 32, 18}, {BlockType::kIQ4_XS, "IQ4_XS", 256, 136},
    {BlockType::kBF16, "BF16", 1, 2},       {BlockType::kMXFP4, "MXFP4", 32, 17},
    {BlockType::kNVFP4, "NVFP4", 64, 36},
};

struct OtherType {
  int32_t type;
  const char* name;
};
constexpr OtherType kOthers[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},
    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {41, "Q1_0"}};

constexpr std::array<int8_t, 16> kMinus8 = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr std::array<int8_t, 16> kMinus4 = {-4, -3, -2, -1, 0, 1, 2, 3};
constexpr std::array<int8_t, 16> kPlain = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr std::array<int8_t, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
// Twice E2M1: the factor of a half is in output_scale.
constexpr std::array<int8_t, 16> kE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

uint8_t byte_at(const std::byte* p, int64_t i) { return static_cast<uint8_t>(p[i]); }

uint16_t half_at(const std::byte* p, int64_t i) {
  uint16_t bits;
  std::memcpy(&bits, p + i, 2);
  return bits;
}

// n/2 bytes: elements 0..n/2-1 in the low nibbles, the rest in the high ones.
void halves(const std::byte* from, int64_t n, uint8_t* codes) {
  for (int64_t j = 0; j < n / 2; ++j) {
    codes[j] = byte_at(from, j) & 15;
    codes[j + n / 2] = byte_at(from, j) >> 4;
  }
}

void copy_half(const std::byte* from, std::byte* to) { std::memcpy(to, from, 2); }

// Blocks of 32, b the block's index in the row.
void read_32(BlockType type, const std::byte* block, int64_t b, QuantRow& out) {
  uint8_t* codes = out.codes + 32 * b;
  if (type == BlockType::kMXFP4) {
    out.scales[b] = block[0];
    return halves(block + 1, 32, codes);
  }
  copy_half(block, out.scales + 2 * b);
  switch (type) {
    case BlockType::kQ4_1:
      copy_half(block + 2, out.mins + 2 * b);
      return halves(block + 4, 32, codes);
    case BlockType::kQ5_0:
    case BlockType::kQ5_1: {
      const bool has_min = type == BlockType::kQ5_1;
      if (has_min) copy_half(block + 2, out.mins + 2 * b);
      uint32_t fifth;
      std::memcpy(&fifth, block + (has_min ? 4 : 2), 4);
      halves(block + (has_min ? 8 : 6), 32, codes);
      for (int i = 0; i < 32; ++i) {
        const int code = codes[i] | static_cast<int>((fifth >> i) & 1) << 4;
        codes[i] = static_cast<uint8_t>(has_min ? code : code - 16);
      }
      return;
    }
    case BlockType::kQ8_0:
      std::memcpy(codes, block + 2, 32);
      return;
    default:
      return halves(block + 2, 32, codes);
  }
}

// 64 elements: four scales, then 32 bytes, in halves per 16. A scale of 7Fh counts as 0.
void read_nvfp4(const std::byte* block, int64_t b, QuantRow& out) {
  for (int64_t s = 0; s < 4; ++s) {
    out.scales[4 * b + s] = byte_at(block, s) == 0x7f ? std::byte{0} : block[s];
    halves(block + 4 + 8 * s, 16, out.codes + 64 * b + 16 * s);
  }
}

// Scales and mins of 6 bits in 12 bytes: those of the later four sub-blocks in two places each.
void read_k_scales(const std::byte* s, int64_t b, QuantRow& out) {
  for (int64_t j = 0; j < 8; ++j) {
    int scale, min;
    if (j < 4) {
      scale = byte_at(s, j) & 63;
      min = byte_at(s, j + 4) & 63;
    } else {
      scale = (byte_at(s, j + 4) & 15) | (byte_at(s, j - 4) >> 6) << 4;
      min = byte_at(s, j + 4) >> 4 | (byte_at(s, j) >> 6) << 4;
    }
    out.scales[8 * b + j] = static_cast<std::byte>(scale);
    out.mins[8 * b + j] = static_cast<std::byte>(min);
  }
}

void read_q4_k(const std::byte* block, int64_t b, QuantRow& out) {
  out.super[b] = half_at(block, 0);
  out.super_min[b] = half_at(block, 2);
  read_k_scales(block + 4, b, out);
  for (int64_t k = 0; k < 4; ++k) halves(block + 16 + 32 * k, 64, out.codes + 256 * b + 64 * k);
}

void read_q5_k(const std::byte* block, int64_t b, QuantRow& out) {
  out.super[b] = half_at(block, 0);
  out.super_min[b] = half_at(block, 2);
  read_k_scales(block + 4, b, out);
  for (int64_t k = 0; k < 4; ++k) {
    uint8_t* codes = out.codes + 256 * b + 64 * k;
    halves(block + 48 + 32 * k, 64, codes);
    for (int64_t l = 0; l < 64; ++l) {
      const int bit = byte_at(block + 16, l % 32) >> (2 * k + l / 32) & 1;
      codes[l] = static_cast<uint8_t>(codes[l] | bit << 4);
    }
  }
}

void read_q6_k(const std::byte* block, int64_t b, QuantRow& out) {
  out.super[b] = half_at(block, 208);
  std::memcpy(out.scales + 16 * b, block + 192, 16);
  for (int64_t half = 0; half < 2; ++half) {
    const std::byte* low = block + 64 * half;
    const std::byte* high = block + 128 + 32 * half;
    uint8_t* codes = out.codes + 256 * b + 128 * half;
    for (int64_t l = 0; l < 32; ++l) {
      for (int64_t part = 0; part < 4; ++part) {
        const int nibble = byte_at(low, l + 32 * (part % 2)) >> (part < 2 ? 0 : 4) & 15;
        const int two = byte_at(high, l) >> (2 * part) & 3;
        codes[l + 32 * part] = static_cast<uint8_t>((nibble | two << 4) - 32);
      }
    }
  }
}

void read_iq4_xs(const std::byte* block, int64_t b, QuantRow& out) {
  out.super[b] = half_at(block, 0);
  const uint16_t high = half_at(block, 2);
  for (int64_t j = 0; j < 8; ++j) {
    const int low = byte_at(block + 4, j / 2) >> (4 * (j % 2)) & 15;
    out.scales[8 * b + j] = static_cast<std::byte>((low | (high >> (2 * j) & 3) << 4) - 32);
    halves(block + 8 + 16 * j, 32, out.codes + 256 * b + 32 * j);
  }
}

// 16 bytes of scale (low nibble) and min (high), 64 of codes of two bits, d, dmin.
void read_q2_k(const std::byte* block, int64_t b, QuantRow& out) {
  out.super[b] = half_at(block, 80);
  out.super_min[b] = half_at(block, 82);
  for (int64_t j = 0; j < 16; ++j) {
    out.scales[16 * b + j] = block[j] & std::byte{15};
    out.mins[16 * b + j] = block[j] >> 4;
  }
  for (int64_t l = 0; l < 256; ++l) {
    const int64_t byte = l / 128 * 32 + l % 32;
    out.codes[256 * b + l] =
        static_cast<uint8_t>(byte_at(block + 16, byte) >> (2 * (l % 128 / 32)) & 3);
  }
}

// 32 bytes of third bits, 64 of two bits, 12 of scales of six bits, d.
void read_q3_k(const std::byte* block, int64_t b, QuantRow& out) {
  out.super[b] = half_at(block, 108);
  const std::byte* s = block + 96;
  for (int64_t j = 0; j < 16; ++j) {
    const int low = byte_at(s, j % 8) >> (j < 8 ? 0 : 4) & 15;
    const int high = byte_at(s, 8 + j % 4) >> (2 * (j / 4)) & 3;
    out.scales[16 * b + j] = static_cast<std::byte>((low | high << 4) - 32);
  }
  for (int64_t l = 0; l < 256; ++l) {
    const int64_t byte = l / 128 * 32 + l % 32;
    const int two = byte_at(block + 32, byte) >> (2 * (l % 128 / 32)) & 3;
    const int third = byte_at(block, l % 32) >> (l / 32) & 1;
    out.codes[256 * b + l] = static_cast<uint8_t>(two | third << 2);
  }
}

void read_block(BlockType type, const std::byte* block, int64_t b, QuantRow& out) {
  switch (type) {
    case BlockType::kQ2_K:
      return read_q2_k(block, b, out);
    case BlockType::kQ3_K:
      return read_q3_k(block, b, out);
    case BlockType::kQ4_K:
      return read_q4_k(block, b, out);
    case BlockType::kQ5_K:
      return read_q5_k(block, b, out);
    case BlockType::kQ6_K:
      return read_q6_k(block, b, out);
    case BlockType::kIQ4_XS:
      return read_iq4_xs(block, b, out);
    case BlockType::kNVFP4:
      return read_nvfp4(block, b, out);
    default:
      return read_32(type, block, b, out);
  }
}

const BlockShape& shape_of(BlockType type) {
  const BlockShape* shape = find_block_shape(static_cast<int32_t>(type));
  REPLAYSSM_CHECK(shape != nullptr, static_cast<int32_t>(type));
  return *shape;
}

QuantFormat two_level(Codes codes, const std::array<int8_t, 16>& table, int32_t group,
                      GroupScale scale, GroupMin min) {
  return {codes, table, group, scale, min, true, false};
}

}  // namespace

const BlockShape* find_block_shape(int32_t type) {
  for (const BlockShape& shape : kShapes) {
    if (static_cast<int32_t>(shape.type) == type) return &shape;
  }
  return nullptr;
}

std::string block_type_name(int32_t type) {
  if (const BlockShape* shape = find_block_shape(type)) return shape->name;
  for (const OtherType& other : kOthers) {
    if (other.type == type) return other.name;
  }
  return concat("type ", type);
}

bool is_quantised(BlockType type) {
  return type != BlockType::kF32 && type != BlockType::kF16 && type != BlockType::kBF16;
}

ops::QuantFormat block_format(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0:
      return {Codes::kNibble, kMinus8, 32, GroupScale::kF16, GroupMin::kNone, false, false};
    case BlockType::kQ4_1:
      return {Codes::kNibble, kPlain, 32, GroupScale::kF16, GroupMin::kAdded, false, false};
    case BlockType::kQ5_0:
      return {Codes::kInt6, {}, 32, GroupScale::kF16, GroupMin::kNone, false, false};
    case BlockType::kQ5_1:
      return {Codes::kInt6, {}, 32, GroupScale::kF16, GroupMin::kAdded, false, false};
    case BlockType::kQ8_0:
      return {Codes::kInt8, {}, 32, GroupScale::kF16, GroupMin::kNone, false, false};
    case BlockType::kQ2_K:
      return two_level(Codes::kNibble, kPlain, 16, GroupScale::kU8, GroupMin::kSuper);
    case BlockType::kQ3_K:
      return two_level(Codes::kNibble, kMinus4, 16, GroupScale::kI8, GroupMin::kNone);
    case BlockType::kQ4_K:
      return two_level(Codes::kNibble, kPlain, 32, GroupScale::kU8, GroupMin::kSuper);
    case BlockType::kQ5_K:
      return two_level(Codes::kInt6, {}, 32, GroupScale::kU8, GroupMin::kSuper);
    case BlockType::kQ6_K:
      return two_level(Codes::kInt6, {}, 16, GroupScale::kI8, GroupMin::kNone);
    case BlockType::kIQ4_NL:
      return {Codes::kNibble, kIq4, 32, GroupScale::kF16, GroupMin::kNone, false, false};
    case BlockType::kIQ4_XS:
      return two_level(Codes::kNibble, kIq4, 32, GroupScale::kI8, GroupMin::kNone);
    case BlockType::kMXFP4:
      return {Codes::kNibble, kE2m1, 32, GroupScale::kE8m0, GroupMin::kNone, false, true};
    case BlockType::kNVFP4:
      return {Codes::kNibble, kE2m1, 16, GroupScale::kE4m3, GroupMin::kNone, false, true};
    default:
      check_failed(__FILE__, __LINE__, "a quantised type", block_type_name(static_cast<int>(type)));
  }
}

ops::QuantMatrix block_matrix(BlockType type, const std::byte* data, int64_t rows, int64_t cols,
                              float output_scale) {
  const BlockShape& shape = shape_of(type);
  REPLAYSSM_CHECK(cols % shape.elements == 0, cols, " of ", shape.name);
  ops::QuantMatrix out{block_format(type), rows, cols, nullptr};
  const bool halved = out.format.output_scale;  // E2M1 is stored doubled
  if (output_scale != 1.0f) out.format.output_scale = true;
  const float factor = halved ? 0.5f * output_scale : output_scale;
  const int64_t n_blocks = cols / shape.elements;
  out.read = [type, data, n_blocks, factor, bytes = shape.bytes](int64_t row, QuantRow& to) {
    const std::byte* from = data + row * n_blocks * bytes;
    for (int64_t b = 0; b < n_blocks; ++b) read_block(type, from + b * bytes, b, to);
    to.output_scale = factor;
  };
  return out;
}

void decode_blocks(BlockType type, const std::byte* data, int64_t n, float* out) {
  if (type == BlockType::kF32) {
    std::memcpy(out, data, static_cast<size_t>(n) * 4);
  } else if (!is_quantised(type)) {
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t bits = half_at(data, 2 * i);
      out[i] = type == BlockType::kF16 ? half_to_float(bits) : bf16_to_float(bits);
    }
  } else {
    const ops::QuantMatrix matrix = block_matrix(type, data, 1, n);
    ops::QuantRowBuffer buffer(matrix.format, n);
    matrix.read(0, buffer.row());
    ops::dequantise_row(matrix.format, n, buffer.row(), out);
  }
}

}  // namespace replayssm
