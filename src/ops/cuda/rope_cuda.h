// src/ops/rope.h on the device.
#pragma once

#include <cstdint>

#include "ops/cuda/context_cuda.h"
#include "ops/matrix.h"
#include "ops/rope_frequencies.h"

namespace replayssm::ops::cuda {

// ops::rope_frequencies into device memory [rotary_dims / 2]. At load: it copies from the host and
// waits.
void rope_frequencies(const CudaContext& context, int32_t rotary_dims, double theta,
                      double* frequencies, const RopeScaling& scaling = {});

// table [n_tokens, rotary_dims]: cos of all pairs, then sin, times the scaling's attention factor;
// angles in double, as on the CPU.
void rope_angles(const CudaContext& context, const double* frequencies, int32_t rotary_dims,
                 const int64_t* positions, int64_t n_tokens, float* table,
                 double attention_factor = 1.0);

// Rotates the first rotary_dims of x [tokens, heads, dim] in place.
void rope_apply(const CudaContext& context, const float* table, int32_t rotary_dims, Heads x);

}  // namespace replayssm::ops::cuda
