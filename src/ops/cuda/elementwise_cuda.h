// src/ops/elementwise.h on the device. Inputs fp32 or bf16, fp32 maths, one rounding at the
// output's dtype; the output may be one of the inputs (same memory, strides and dtype).
#pragma once

#include <cstdint>

#include "ops/cuda/context_cuda.h"
#include "ops/matrix.h"

namespace replayssm::ops::cuda {

// y = silu(gate) * up
void silu_mul(const CudaContext& context, ConstMatrix gate, ConstMatrix up, Matrix y);

// y = max(x, 0)^2
void relu2(const CudaContext& context, ConstMatrix x, Matrix y);

// y = x * sigmoid(gate)
void sigmoid_mul(const CudaContext& context, ConstHeads x, ConstHeads gate, Heads y);

// x = x + scale * y          x fp32
void residual_add(const CudaContext& context, Matrix x, ConstMatrix y, float scale = 1.0f);

// y = scale * x              x fp32, bf16 or fp16
void copy(const CudaContext& context, ConstMatrix x, Matrix y, float scale = 1.0f);

// y[i] = scale * table[tokens[i]]     table [n_vocab, cols] fp32, bf16 or fp16, row-major: a tied
// head's weight is one. A token outside [0, n_vocab) gives zeros.
void embed(const CudaContext& context, ConstMatrix table, const int32_t* tokens, Matrix y,
           float scale = 1.0f);

}  // namespace replayssm::ops::cuda
