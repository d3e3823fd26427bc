// Values for weights and states that stand for real ones when a model is only timed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "replay/types.h"

namespace replayssm::cuda {

// data[i] = mean + scale * u(key, i), u even in [-1, 1): a function of (key, i) alone. int8 is
// filled as checkpoints hold it, biased by 128; its mean and scale count in steps.
void fill(void* data, DType dtype, int64_t n, uint64_t key, float mean, float scale,
          cudaStream_t stream);

// E4M3 bytes of both signs, below two, of this standard deviation.
inline constexpr float kE4m3Deviation = 0.6f;
void fill_e4m3(void* data, int64_t n, uint64_t key, cudaStream_t stream);

}  // namespace replayssm::cuda
