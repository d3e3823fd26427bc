// Layout of a page of the KV cache: per kv head k [16][dim], then v [16][dim]. For the tensor-core
// kernel the 16-byte chunks of a position are permuted by position % 8, so that a tile copied to
// shared memory as it is can be read without bank conflicts.
#pragma once

#include <cstdint>

#include "ops/cuda/attention_cuda.h"

namespace replayssm::ops::cuda {

// Shapes that the tensor-core kernel supports.
constexpr bool kv_permuted(DType dtype, int32_t head_dim) {
  return dtype == DType::kBF16 && (head_dim == 64 || head_dim == 128 || head_dim == 256);
}

// A layer's cache as the kernels see it.
struct KvView {
  char* data;
  int64_t page_stride;
  int64_t head_bytes;
  int32_t n_kv_heads;
  int32_t dim;
  DType dtype;
  bool permuted;

  // Element offset of (slot, d) from a head's k or v.
  __host__ __device__ int64_t element(int32_t slot, int32_t d) const {
    if (!permuted) return int64_t{slot} * dim + d;
    return int64_t{slot} * dim + ((d / 8) ^ (slot % 8)) * 8 + d % 8;
  }
  __host__ __device__ char* keys(int64_t page, int32_t head) const {
    return data + page * page_stride + head * head_bytes;
  }
  __host__ __device__ char* values(int64_t page, int32_t head) const {
    return keys(page, head) + head_bytes / 2;
  }
};

inline KvView kv_view(const KvShapeCuda& shape, const KvPool& pool) {
  return {static_cast<char*>(pool.data),
          pool.page_stride_bytes,
          shape.head_bytes(),
          shape.n_kv_heads,
          shape.head_dim,
          shape.dtype,
          kv_permuted(shape.dtype, shape.head_dim)};
}

void check_kv(const KvShapeCuda& shape, const KvPool& pool, const AttentionRowsCuda& rows);

}  // namespace replayssm::ops::cuda
