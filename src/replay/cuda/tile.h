// The private layout of a checkpoint: tiles of 32 state rows, each in the order in which a warp's
// lanes take it as operands of the tensor cores.
//
// State rows are counted over all heads: row = head * value_dim + value. A tile [32 rows, key_dim]
// is stored as [chunk][m][lane][16 bytes]: of product m (16 rows), lane 4 g + c holds the rows
// (g, half 0) and (g, half 1) and of each step of 16 keys the pairs {2c, 2c+1} and {2c+8, 2c+9}:
//   16-bit types  [pair][half][key of the pair]; a chunk is a step: the operand's four registers
//   int8          the same, two steps in a chunk
//   fp32          [key of the pair][half]; a chunk is one pair of a step
// A warp reads and writes 512 contiguous bytes a request.
#pragma once

#include <cstdint>

#include "replay/types.h"

#ifdef __CUDACC__
#define REPLAYSSM_HOST_DEVICE __host__ __device__
#else
#define REPLAYSSM_HOST_DEVICE
#endif

namespace replayssm::cuda {

inline constexpr int kTileRows = 32;
inline constexpr int kStepKeys = 16;  // keys of one tensor-core product

// Rows of a lane: four neighbours, unless heads end inside tiles; then two in each half of a tile.
REPLAYSSM_HOST_DEVICE constexpr bool wide_rows(int value_dim) { return value_dim % kTileRows == 0; }

// The row within its tile of lane group g, product m, half.
REPLAYSSM_HOST_DEVICE constexpr int tile_row(bool wide, int g, int m, int half) {
  return wide ? 4 * g + 2 * m + half : 16 * m + 2 * g + half;
}

// Where element (row, key) of a slot stands.
REPLAYSSM_HOST_DEVICE constexpr int64_t stored_index(DType checkpoint, int value_dim, int key_dim,
                                                     int64_t row, int key) {
  const int r = static_cast<int>(row % kTileRows);
  const bool wide = wide_rows(value_dim);
  const int g = wide ? r / 4 : r % 16 / 2;
  const int m = wide ? r / 2 % 2 : r / 16;
  const int half = r % 2;
  const int step = key / kStepKeys, in_step = key % kStepKeys;
  const int pair = in_step / 8, c = in_step % 8 / 2, odd = key % 2;
  int chunk = step, element = pair * 4 + half * 2 + odd, elements = 8;
  if (checkpoint == DType::kF32) {
    chunk = 2 * step + pair;
    element = odd * 2 + half;
    elements = 4;
  } else if (checkpoint == DType::kI8) {
    chunk = step / 2;
    element += step % 2 * 8;
    elements = 16;
  }
  return row / kTileRows * kTileRows * key_dim +
         int64_t{(chunk * 2 + m) * 32 + 4 * g + c} * elements + element;
}

}  // namespace replayssm::cuda
