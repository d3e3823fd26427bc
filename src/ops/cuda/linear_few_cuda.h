// linear() for weights of few bits.
#pragma once

#include "ops/cuda/linear_cuda.h"

namespace replayssm::ops::cuda {

// One algorithm for every number of rows, in both modes: a row's bits do not depend on the others.
void linear_few(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
                bool accumulate);

// Outputs [first, first + n), first a multiple of kFewTile, rounded to bf16 [n, n_in].
void widen_few(const CudaContext& context, const LinearCuda& weight, int64_t first, int64_t n,
               void* to);

}  // namespace replayssm::ops::cuda
