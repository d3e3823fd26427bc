// What FP8 products multiply: rows in E4M3 with scales, by the type of the weight.
#pragma once

#include <cstdint>

#include "ops/cuda/context_cuda.h"
#include "ops/cuda/linear_cuda.h"
#include "ops/matrix.h"

namespace replayssm::ops::cuda {

struct Quantised {
  uint8_t* data = nullptr;  // E4M3 [rows, n_in]
  // What undoes the scaling: kFp8Row [rows], kFp8Block [ceil(n_in / 128)][rows].
  float* scales = nullptr;
  int64_t rows = 0;  // a multiple of four
};

// For this many rows, rounded up to a multiple of four, in 16-byte aligned memory.
int64_t quantised_bytes(int64_t rows, int64_t n_in);
Quantised quantised_at(void* memory, int64_t rows, int64_t n_in);

// out = x, bf16 in 16-byte pieces; rows beyond x's are zeros. A row's result is its own.
void quantise(const CudaContext& context, WeightType type, ConstMatrix x, const Quantised& out);

// quantise() of silu_mul()'s or relu2()'s bf16 result, to the bit.
void quantise_silu_mul(const CudaContext& context, WeightType type, ConstMatrix gate,
                       ConstMatrix up, const Quantised& out);
void quantise_relu2(const CudaContext& context, WeightType type, ConstMatrix x,
                    const Quantised& out);

// out[row[t * top_k + i]] = x[t]; rows that nothing goes to are left as they are.
void quantise_spread(const CudaContext& context, WeightType type, ConstMatrix x, const int32_t* row,
                     int32_t top_k, const Quantised& out);

}  // namespace replayssm::ops::cuda
