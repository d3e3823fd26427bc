// The kernels of attention().
#pragma once

#include <cstdint>

#include "ops/cuda/attention_cuda.h"
#include "ops/cuda/kv_layout.cuh"

namespace replayssm::ops::cuda {

struct AttentionParams {
  KvView kv;
  AttentionRowsCuda rows;
  ConstHeads q;
  Heads out;
  int32_t group;     // heads of q a kv head
  int32_t n_blocks;  // blocks of query rows a window
  int32_t n_splits;  // 1, or the segments of max_positions
  float scale_log2;  // scale * log2(e)
  bool pieces;       // q and out in 16-byte pieces
  // Null: a block folds all its segments. Else each segment's part goes here,
  // [token][head][n_splits][head_dim + 2].
  float* parts;

  __device__ float* part(int64_t token, int64_t head, int64_t segment) const {
    return parts + ((token * q.heads + head) * n_splits + segment) * (kv.dim + 2);
  }
};

struct AttentionInstance {
  int32_t dim;
  int32_t rows;  // of a block
  int32_t threads;
  int32_t blocks;  // a multiprocessor
  int32_t shared_bytes;
  void (*kernel)(AttentionParams);
};

// The instance for windows of n_rows query rows a kv head, or the largest.
const AttentionInstance& attention_instance(int32_t dim, int64_t n_rows);

}  // namespace replayssm::ops::cuda
