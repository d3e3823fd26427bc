// The block types of GGUF files: what their bytes are, and their rows in the form of ops/quant.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ops/quant.h"

namespace replayssm {

// The values are the file's.
enum class BlockType : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
  kNVFP4 = 40,
};

struct BlockShape {
  BlockType type;
  const char* name;
  int64_t elements;
  int64_t bytes;
};

// Null for a type that is not read; its name, if it has one, is then block_type_name's.
const BlockShape* find_block_shape(int32_t type);
std::string block_type_name(int32_t type);

// F32, F16 and BF16 are no blocks: they stay matrices of numbers.
bool is_quantised(BlockType type);

// The internal form of a quantised type.
ops::QuantFormat block_format(BlockType type);

// [rows, cols] of a quantised type; cols is a multiple of the block's elements. `data` must outlive
// the matrix. output_scale: multiplies all weights (NVFP4 has one beside the tensor).
ops::QuantMatrix block_matrix(BlockType type, const std::byte* data, int64_t rows, int64_t cols,
                              float output_scale = 1.0f);

// Any type: n elements (whole blocks) in fp32.
void decode_blocks(BlockType type, const std::byte* data, int64_t n, float* out);

}  // namespace replayssm
