// src/ops/moe.h on the device. Experts are one stack of weights, and a layer of all of them is one
// kernel over the rows that sort_by_expert() brought together.
#pragma once

#include <cstdint>

#include "ops/cuda/context_cuda.h"
#include "ops/cuda/linear_cuda.h"
#include "ops/cuda/quantise_cuda.h"
#include "ops/matrix.h"
#include "ops/moe.h"
#include "ops/norm.h"

namespace replayssm::ops::cuda {

// experts and weights [tokens, top_k]; Router::bias is the device's.
void route(const CudaContext& context, const Router& router, ConstMatrix logits, int32_t* experts,
           float* weights);

void sort_by_expert(const CudaContext& context, const int32_t* experts, int64_t n_tokens,
                    int32_t top_k, int32_t n_experts, int32_t* first, int32_t* row);

// y[row[t * top_k + i]] = x[t]
void spread_rows(const CudaContext& context, ConstMatrix x, const int32_t* row, int32_t top_k,
                 Matrix y);

// The output of the shared expert, fp32, times sigmoid(gate[t]), [tokens, 1], if there is a gate.
struct SharedOutput {
  ConstMatrix x = {};
  ConstMatrix gate = {};
};

// rms_norm() of what sum_rows() leaves, to the bit.
struct NormedOutput {
  NormWeight weight = {};
  float eps = 0;
  Matrix y = {};  // bf16 or fp32
};

// y[t] = sum_i weights[t * top_k + i] * x[row[t * top_k + i]], in order, fp32; accumulate: added to
// y[t], the residual stream. The shared expert's output is added last, if there is one. Then the
// norm of y[t], if requested.
void sum_rows(const CudaContext& context, ConstMatrix x, const int32_t* row, const float* weights,
              int32_t top_k, Matrix y, bool accumulate = false, const SharedOutput& shared = {},
              const NormedOutput& then = {});

// Expert e's weight [n_out, n_in] starts e * n_out * n_in elements in, its scales likewise: n_out
// of them, or ceil(n_out / 128) * fp8_scale_stride(n_in).
struct ExpertsCuda {
  LinearCuda stack;  // bf16: n_in a multiple of 32, n_out of 16; FP8: n_in of 16
  int32_t n_experts = 0;
};

// y[r] = weight[e] x[r] for the rows [first[e], first[e + 1]) of every expert e; x bf16, or, with
// FP8 weights, quantised for their type; y bf16 or fp32. A row's sum runs in one order whatever the
// number of rows, in both modes.
void expert_linear(const CudaContext& context, const ExpertsCuda& experts, const int32_t* first,
                   ConstMatrix x, Matrix y);
void expert_linear(const CudaContext& context, const ExpertsCuda& experts, const int32_t* first,
                   const Quantised& x, Matrix y);

}  // namespace replayssm::ops::cuda
