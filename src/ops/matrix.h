// Views of activations: fp32 or bf16, rows of `cols` elements that start `stride` elements apart.
#pragma once

#include <cstdint>

#include "replay/types.h"

namespace replayssm::ops {

struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  const void* at(int64_t row, int64_t col = 0) const {
    return static_cast<const char*>(data) + (row * stride + col) * dtype_bytes(dtype);
  }
  ConstMatrix slice_rows(int64_t first, int64_t count) const {
    return {at(first), dtype, count, cols, stride};
  }
  ConstMatrix slice_cols(int64_t first, int64_t count) const {
    return {at(0, first), dtype, rows, count, stride};
  }
};

struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  void* at(int64_t row, int64_t col = 0) const {
    return static_cast<char*>(data) + (row * stride + col) * dtype_bytes(dtype);
  }
  Matrix slice_rows(int64_t first, int64_t count) const {
    return {at(first), dtype, count, cols, stride};
  }
  Matrix slice_cols(int64_t first, int64_t count) const {
    return {at(0, first), dtype, rows, count, stride};
  }
  operator ConstMatrix() const { return {data, dtype, rows, cols, stride}; }
};

// The heads of packed tokens: element d of head h of token t is at
// data + t * token_stride + h * head_stride + d (strides in elements). An interleaved projection
// such as [q | gate] a head is two of these with a head stride of 2 * dim.
struct ConstHeads {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  const void* at(int64_t token, int64_t head) const {
    return static_cast<const char*>(data) +
           (token * token_stride + head * head_stride) * dtype_bytes(dtype);
  }
};

struct Heads {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  void* at(int64_t token, int64_t head) const {
    return static_cast<char*>(data) +
           (token * token_stride + head * head_stride) * dtype_bytes(dtype);
  }
  operator ConstHeads() const {
    return {data, dtype, tokens, heads, dim, token_stride, head_stride};
  }
};

}  // namespace replayssm::ops
