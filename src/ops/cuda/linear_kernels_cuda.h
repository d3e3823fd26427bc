// The own kernels of linear(), in linear.cu.
#pragma once

#include "ops/cuda/linear_cuda.h"

namespace replayssm::ops::cuda {

// One row, bf16 weight and x in 16-byte pieces: one warp per output, bound by reading the weights.
void linear_one_row(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
                    bool accumulate);

// Any of fp32 and bf16, any shape and stride: one thread per output, one sequential sum. For small
// models.
void linear_plain(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
                  bool accumulate);

}  // namespace replayssm::ops::cuda
