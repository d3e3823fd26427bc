// The own kernels of linear() for FP8 weights.
#pragma once

#include "ops/cuda/linear_cuda.h"

namespace replayssm::ops::cuda {

// x in E4M3 [rows, n_in], and what undoes its scaling: [rows], or [ceil(n_in / 128)][rows].
struct Quantised {
  uint8_t* data;
  float* scales;
  int64_t rows;  // x's own, and zeros up to a multiple of four
};

// x bf16 in 16-byte pieces.
void quantise(const CudaContext& context, WeightType type, ConstMatrix x, const Quantised& out);

// One row: a warp an output.
void linear_fp8_one_row(const CudaContext& context, const LinearCuda& weight, const Quantised& x,
                        Matrix y, bool accumulate);

}  // namespace replayssm::ops::cuda
