// The private layout of a checkpoint: tiles of state rows, each in the order in which a warp's
// lanes load it as tensor-core operands.
//
// State rows are counted over all heads: row = head * value_dim + value. A tile is 32 rows (two
// products), or 16 (one product) if heads would end inside tiles of 32. [rows, key_dim] is
// stored as [chunk][m][lane][16 bytes]: of product m (16 rows), lane 4 g + c holds the rows
// (g, half 0) and (g, half 1) and of each step of 16 keys the pairs {2c, 2c+1} and {2c+8, 2c+9}:
//   16-bit types  [pair][half][key of the pair]; a chunk is a step: the operand's four registers
//   int8          the same, two steps in a chunk
//   fp32          [key of the pair][half]; a chunk is one pair of a step
// A warp reads and writes 512 contiguous bytes per request.
#pragma once

#include <cstdint>

#include "replay/types.h"

#ifdef __CUDACC__
#define REPLAYSSM_HOST_DEVICE __host__ __device__
#else
#define REPLAYSSM_HOST_DEVICE
#endif

namespace replayssm::cuda {

inline constexpr int kStepKeys = 16;     // keys of one tensor-core product
inline constexpr int kProductRows = 16;  // its state rows

// Products per tile. A lane's rows are neighbours: four with two products, two with one.
REPLAYSSM_HOST_DEVICE constexpr int tile_products(int value_dim) {
  return value_dim % (2 * kProductRows) == 0 ? 2 : 1;
}

// The row within its tile of lane group g, product m, half.
REPLAYSSM_HOST_DEVICE constexpr int tile_row(int products, int g, int m, int half) {
  return products * 2 * g + 2 * m + half;
}

// Index of element (row, key) in a slot.
REPLAYSSM_HOST_DEVICE constexpr int64_t stored_index(DType checkpoint, int value_dim, int key_dim,
                                                     int64_t row, int key) {
  const int products = tile_products(value_dim), rows = products * kProductRows;
  const int r = static_cast<int>(row % rows);
  const int g = r / (2 * products), m = r / 2 % products, half = r % 2;
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
  return row / rows * rows * key_dim + int64_t{(chunk * products + m) * 32 + 4 * g + c} * elements +
         element;
}

}  // namespace replayssm::cuda
