// The private layout of a checkpoint: tiles of 32 state rows, each in the order in which a warp's
// lanes read it as operands of the tensor cores.
//
// State rows are counted over all heads: row = head * value_dim + value. A tile [32 rows, key_dim]
// is stored as [chunk][m][half][lane][16 bytes]. Lane 4 g + c holds, of row (g, m, half), the keys
// {2c, 2c+1, 2c+8, 2c+9} of each step of 16 keys: one step in a chunk of fp32, two of 16-bit types,
// four of int8. So a warp reads and writes the tile in 512 contiguous bytes a request, and a
// product's result has the layout of its operand.
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

// Steps of 16 keys in a lane's 16 bytes.
REPLAYSSM_HOST_DEVICE constexpr int chunk_steps(DType checkpoint) {
  return 4 / static_cast<int>(dtype_bytes(checkpoint));
}

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
  const int c = in_step % 8 / 2;
  const int element = in_step / 8 * 2 + in_step % 2;
  const int steps = chunk_steps(checkpoint);
  const int64_t chunk = ((step / steps * 2 + m) * 2 + half) * 32 + 4 * g + c;
  return row / kTileRows * kTileRows * key_dim + chunk * (4 * steps) + step % steps * 4 + element;
}

}  // namespace replayssm::cuda
