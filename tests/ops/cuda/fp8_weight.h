// E4M3 weights for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "ops/cuda/linear_cuda.h"

namespace replayssm::ops::cuda {

inline float e4m3_to_float(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                    : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -value : value;
}

// Random bytes and scales.
struct Fp8Weight {
  Fp8Weight(WeightType kind, int64_t outputs, int64_t inputs, uint32_t seed = 5)
      : type(kind), n_out(outputs), n_in(inputs) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> scale(0.01f, 0.03f);
    for (int64_t i = 0; i < n_out * n_in; ++i) {
      uint8_t byte = static_cast<uint8_t>(random());
      if ((byte & 0x7f) == 0x7f) byte = 0;  // NaN
      bytes.push_back(byte);
    }
    const int64_t n_scales = type == WeightType::kFp8Row
                                 ? n_out
                                 : (n_out + kFp8Block - 1) / kFp8Block * fp8_scale_stride(n_in);
    for (int64_t i = 0; i < n_scales; ++i) scales.push_back(scale(random));
  }
  float get(int64_t o, int64_t i) const {
    const int64_t at =
        type == WeightType::kFp8Row ? o : o / kFp8Block * fp8_scale_stride(n_in) + i / kFp8Block;
    return e4m3_to_float(bytes[static_cast<size_t>(o * n_in + i)]) *
           scales[static_cast<size_t>(at)];
  }

  WeightType type;
  int64_t n_out, n_in;
  std::vector<uint8_t> bytes;
  std::vector<float> scales;
};

}  // namespace replayssm::ops::cuda
