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
  int32_t group;     // query heads per kv head
  int32_t n_blocks;  // blocks of query rows per window
  int32_t n_splits;  // 1, or the segments of max_positions
  float scale_log2;  // scale * log2(e)
  bool pieces;       // q and out in 16-byte pieces
  // Null: a block folds all its segments. Otherwise each segment's partial result goes here,
  // [token][head][n_splits][head_dim + 2]: weighted v, maximum, sum.
  float* parts;

  __device__ float* part(int64_t token, int64_t head, int64_t segment) const {
    return parts + ((token * q.heads + head) * n_splits + segment) * (kv.dim + 2);
  }
};

struct AttentionInstance {
  int32_t dim;
  int32_t rows;  // per block
  int32_t threads;
  int32_t blocks;  // per SM
  int32_t shared_bytes;
  void (*kernel)(AttentionParams);
};

// The smallest instance with n_rows query rows per kv head, or the largest there is.
const AttentionInstance& attention_instance(int32_t dim, int64_t n_rows);

}  // namespace replayssm::ops::cuda
