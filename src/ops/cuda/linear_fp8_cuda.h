// The own kernels of linear() for FP8 weights.
#pragma once

#include "ops/cuda/linear_cuda.h"
#include "ops/cuda/quantise_cuda.h"

namespace replayssm::ops::cuda {

// One row of x: one warp per output.
void linear_fp8_one_row(const CudaContext& context, const LinearCuda& weight, const Quantised& x,
                        Matrix y, bool accumulate);

// At most this many outputs, which leave most of the card idle in cuBLASLt's kernels.
constexpr int64_t kNarrow = 128;
// expert_linear() with one expert, in small items.
void linear_fp8_narrow(const CudaContext& context, const LinearCuda& weight, const Quantised& x,
                       Matrix y);

}  // namespace replayssm::ops::cuda
