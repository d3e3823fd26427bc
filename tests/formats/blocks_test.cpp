#include "model/formats/blocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "hex.h"
#include "model/safetensors.h"

namespace replayssm {
namespace {

std::vector<float> decode(BlockType type, const std::vector<std::byte>& bytes) {
  const BlockShape& shape = *find_block_shape(static_cast<int32_t>(type));
  const int64_t blocks = static_cast<int64_t>(bytes.size()) / shape.bytes;
  EXPECT_EQ(blocks * shape.bytes, static_cast<int64_t>(bytes.size())) << shape.name;
  std::vector<float> out(static_cast<size_t>(blocks * shape.elements));
  decode_blocks(type, bytes.data(), blocks * shape.elements, out.data());
  return out;
}

void expect_at(const std::vector<float>& values, const std::map<int, float>& want) {
  for (const auto& [at, value] : want) {
    EXPECT_EQ(values[static_cast<size_t>(at)], value) << "element " << at;
  }
}

constexpr const char* kHalf = "00 38";     // f16 0.5
constexpr const char* kOne = "00 3C";      // f16 1
constexpr const char* kQuarter = "00 34";  // f16 0.25
constexpr const char* kScales = "81 82 83 84 C5 C6 C7 C8 15 26 37 48";

TEST(Blocks, Of32) {
  const auto q4 = decode(BlockType::kQ4_0, join({hex(kHalf), hex("F0"), times(15, "88")}));
  expect_at(q4, {{0, -4.0f}, {16, 3.5f}, {1, 0.0f}});
  const auto q4_1 =
      decode(BlockType::kQ4_1, join({hex(kHalf), hex(kOne), hex("F0"), times(15, "22")}));
  expect_at(q4_1, {{0, 1.0f}, {16, 8.5f}, {1, 2.0f}});
  // The fifth bits: set for elements 0 and 31.
  const auto q5 =
      decode(BlockType::kQ5_0, join({hex(kHalf), hex("01 00 00 80"), hex("F0"), times(15, "88")}));
  expect_at(q5, {{0, 0.0f}, {16, -0.5f}, {1, -4.0f}, {31, 4.0f}});
  const auto q5_1 =
      decode(BlockType::kQ5_1,
             join({hex(kHalf), hex(kOne), hex("01 00 00 80"), hex("F0"), times(15, "88")}));
  expect_at(q5_1, {{0, 9.0f}, {16, 8.5f}, {31, 13.0f}});
  const auto q8 = decode(BlockType::kQ8_0, join({hex(kHalf), hex("80 7F"), times(30, "00")}));
  expect_at(q8, {{0, -64.0f}, {1, 63.5f}, {2, 0.0f}});
  const auto iq4 = decode(BlockType::kIQ4_NL, join({hex(kOne), hex("8F"), times(15, "00")}));
  expect_at(iq4, {{0, 113.0f}, {16, 1.0f}, {1, -127.0f}});
  const auto mx = decode(BlockType::kMXFP4, join({hex("80 21"), times(15, "00")}));
  expect_at(mx, {{0, 1.0f}, {16, 2.0f}, {1, 0.0f}});
}

TEST(Blocks, OfKTypes) {
  const auto q4 =
      decode(BlockType::kQ4_K, join({hex(kOne), hex(kHalf), hex(kScales), times(128, "A3")}));
  const auto q5 =
      decode(BlockType::kQ5_K,
             join({hex(kOne), hex(kHalf), hex(kScales), times(32, "02"), times(128, "A3")}));
  const float four[] = {.5f, 17, 5.5f, 36, 86.5f, 355, 91.5f, 374};
  const float five[] = {.5f, 49, 5.5f, 36, 86.5f, 355, 91.5f, 374};
  for (int j = 0; j < 8; ++j) {
    EXPECT_EQ(q4[static_cast<size_t>(32 * j)], four[j]) << j;
    EXPECT_EQ(q5[static_cast<size_t>(32 * j)], five[j]) << j;
  }
  const auto q6 =
      decode(BlockType::kQ6_K,
             join({times(128, "21"), times(64, "E4"),
                   hex("01 02 03 04 05 06 07 08 09 0A 0B 0C 0D 0E 0F 10"), hex(kQuarter)}));
  expect_at(q6, {{0, -7.75f},
                 {16, -15.5f},
                 {32, -11.25f},
                 {64, 2.5f},
                 {96, 31.5f},
                 {128, -69.75f},
                 {255, 72.0f}});
  // Scales 33 31 32 63 0 40 20 50: nibbles 1 15 0 15 0 8 4 2, upper bits 2 1 2 3 0 2 1 3.
  const auto iq4 = decode(BlockType::kIQ4_XS,
                          join({hex(kOne), hex("E6 D8"), hex("F1 F0 80 24"), times(128, "8F")}));
  const float codebook[] = {113, -113, 0, 3503, -3616, 904, -1356, 2034};
  for (int j = 0; j < 8; ++j) EXPECT_EQ(iq4[static_cast<size_t>(32 * j)], codebook[j]) << j;
}

TEST(Blocks, Nvfp4) {
  const auto values =
      decode(BlockType::kNVFP4,
             join({hex("39 00 00 00"), hex("91 A2 B3 C4 D5 E6 F7 08"), times(24, "00")}));
  const float want[] = {.5625f,  1.125f,  1.6875f,  2.25f,  3.375f,  4.5f,  6.75f,  0,
                        -.5625f, -1.125f, -1.6875f, -2.25f, -3.375f, -4.5f, -6.75f, 0};
  for (int i = 0; i < 16; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], want[i]) << i;
}

TEST(Blocks, PlainNumbers) {
  expect_at(decode(BlockType::kF32, hex("00 00 80 3F")), {{0, 1.0f}});
  expect_at(decode(BlockType::kF16, join({hex(kHalf), hex("01 00")})), {{0, .5f}, {1, 0x1p-24f}});
  expect_at(decode(BlockType::kBF16, hex("80 BF")), {{0, -1.0f}});
}

// Random blocks of every type, as the `gguf` package reads them, to the bit.
TEST(Blocks, EqualTheGgufPackage) {
  const auto files = TensorFiles::open_file(std::string(REPLAYSSM_SOURCE_DIR) +
                                            "/tests/data/gguf/blocks.safetensors");
  int n_types = 0;
  for (int32_t type = 0; type < 64; ++type) {
    const BlockShape* shape = find_block_shape(type);
    if (shape == nullptr || !is_quantised(shape->type)) continue;
    ++n_types;
    const TensorView& bytes = files.at(std::string(shape->name) + ".bytes");
    const std::vector<float> want = read_fp32(files.at(std::string(shape->name) + ".values"));
    std::vector<float> got(want.size());
    ASSERT_EQ(bytes.bytes / shape->bytes * shape->elements, static_cast<int64_t>(want.size()));
    decode_blocks(shape->type, bytes.data, static_cast<int64_t>(want.size()), got.data());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i], want[i]) << shape->name << " element " << i;
    }
  }
  EXPECT_EQ(n_types, 14);
}

// A scale beside the tensor multiplies all of it.
TEST(Blocks, ScaleOfATensor) {
  const auto block = join({hex("80 21"), times(15, "00")});
  const ops::QuantMatrix matrix = block_matrix(BlockType::kMXFP4, block.data(), 1, 32, 4.0f);
  ops::QuantRowBuffer buffer(matrix.format, 32);
  matrix.read(0, buffer.row());
  std::vector<float> row(32);
  ops::dequantise_row(matrix.format, 32, buffer.row(), row.data());
  EXPECT_EQ(row[0], 4.0f);
  EXPECT_EQ(row[16], 8.0f);
}

}  // namespace
}  // namespace replayssm
