// Encoders, each rounding to the nearest code of its scale: rows of fp32 to blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/formats/blocks.h"

namespace replayssm {

// F32, F16, BF16, Q4_0, Q8_0 and Q4_K, of n elements in whole blocks.
void encode_blocks(BlockType type, const float* values, int64_t n, std::byte* out);

// NVFP4 as modelopt publishes it: [rows, cols], cols a multiple of 16.
struct Nvfp4 {
  std::vector<uint8_t> codes;   // [rows, cols / 2], the even input's low
  std::vector<uint8_t> scales;  // [rows, cols / 16], E4M3
  float scale_2 = 1.0f;
};
Nvfp4 encode_nvfp4(const float* values, int64_t rows, int64_t cols);

// Nearest, ties to even; at most 448 in magnitude. For numbers that are not negative.
uint8_t e4m3_nearest(float value);

}  // namespace replayssm
