// The own kernels of linear(), in linear.cu and linear_narrow.cu.
#pragma once

#include "ops/cuda/linear_cuda.h"

namespace replayssm::ops::cuda {

// One row, bf16 weight and x in 16-byte pieces: bound by reading the weights.
bool takes_one_row(const LinearCuda& weight);
void linear_one_row(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
                    bool accumulate);

// Few outputs and rows, bf16 weight and x in 16-byte pieces (linear_narrow.cu). A row's bits do not
// depend on the number of rows.
bool takes_narrow(const LinearCuda& weight, int64_t rows);
void linear_narrow(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
                   bool accumulate);

// Any of fp32 and bf16, any shape and stride: one thread per output, one sequential sum. For small
// models.
void linear_plain(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
                  bool accumulate);

}  // namespace replayssm::ops::cuda
