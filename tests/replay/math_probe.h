// The functions of simd16.h as plain calls, one table for each instruction set.
#pragma once

#include <cstdint>

namespace replayssm::test {

// n <= 16; n < 16 takes the load_n / store_n tail.
struct MathProbe {
  using Unary = void (*)(const float* in, float* out, int n);
  Unary exp, softplus, sigmoid, silu;
  void (*exp_one)(const float* in, float* out);
  void (*to_half)(const float* in, uint16_t* out, int n);
  void (*to_bf16)(const float* in, uint16_t* out, int n);
  void (*from_half)(const uint16_t* in, float* out, int n);
  void (*from_bf16)(const uint16_t* in, float* out, int n);
  float (*reduce_add)(const float* in);
  float (*fma)(float a, float b, float c);
};

namespace portable {
extern const MathProbe kMathProbe;
}
namespace avx2 {
extern const MathProbe kMathProbe;
}
namespace avx512 {
extern const MathProbe kMathProbe;
}

}  // namespace replayssm::test
