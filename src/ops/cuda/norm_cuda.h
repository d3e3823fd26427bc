// src/ops/norm.h on the device: all in fp32, one rounding at the output's dtype; a row's sum runs
// in one order whatever the number of rows. NormWeight::data is the device's.
#pragma once

#include <cstdint>

#include "ops/cuda/context_cuda.h"
#include "ops/matrix.h"
#include "ops/norm.h"

namespace replayssm::ops::cuda {

// y[i] = n(x[i]) * w; with `rows`, y[i] = n(x[rows[i]]) * w for the y.rows indices of it (what
// enters the output head). y may be x if rows is null.
void rms_norm(const CudaContext& context, ConstMatrix x, NormWeight weight, float eps, Matrix y,
              const int64_t* rows = nullptr);

// x = x + delta, then y = n(x) * w: the two ends of a layer in one kernel, with the bits of
// residual_add() and rms_norm(). x fp32.
void add_rms_norm(const CudaContext& context, Matrix x, ConstMatrix delta, NormWeight weight,
                  float eps, Matrix y);

// x[t, h] = n(x[t, h]) * w in place, w [dim] shared by the heads (qk-norm).
void head_norm(const CudaContext& context, Heads x, NormWeight weight, float eps);

// out may be y or z.
void gated_norm(const CudaContext& context, const GatedNorm& norm, ConstMatrix y, ConstMatrix z,
                Matrix out);

}  // namespace replayssm::ops::cuda
