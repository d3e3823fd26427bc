// The kernel of expert_linear() for FP8 weights.
#pragma once

#include "ops/cuda/linear_fp8_cuda.h"
#include "ops/cuda/moe_cuda.h"

namespace replayssm::ops::cuda {

// x: as quantise() leaves it.
void expert_linear_fp8(const CudaContext& context, const ExpertsCuda& experts, const int32_t* first,
                       const Quantised& x, Matrix y);

}  // namespace replayssm::ops::cuda
