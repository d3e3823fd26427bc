// Merges the partial results of a row: (maximum in powers of two, sum, weighted v).
#pragma once

#include <cstdint>

namespace replayssm::ops::cuda {

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// An empty partial result (maximum -inf, all else zero) changes no bit of the other.
struct Fold {
  float most, a, b;
  __device__ Fold(float most_a, float most_b) : most(fmaxf(most_a, most_b)) {
    const float from = most == -INFINITY ? 0.0f : most;
    a = exp2_fast(most_a - from);
    b = exp2_fast(most_b - from);
  }
  __device__ float operator()(float x, float y) const { return __fmaf_rn(y, b, x * a); }
};

__device__ __forceinline__ float normaliser(float sum) { return __frcp_rn(sum); }

}  // namespace replayssm::ops::cuda
