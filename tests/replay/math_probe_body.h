// Included once by the translation unit of each instruction set.
#include "math_probe.h"
#include "replay/simd16.h"

namespace replayssm::test::REPLAYSSM_ISA {
namespace {

namespace simd = replayssm::simd::REPLAYSSM_ISA;
using simd::V;

template <V (*kFunction)(V)>
void unary(const float* in, float* out, int n) {
  if (n == simd::kLanes) {
    simd::store(out, kFunction(simd::load(in)));
  } else {
    simd::store_n(out, kFunction(simd::load_n(in, n)), n);
  }
}

void exp_one(const float* in, float* out) { *out = simd::exp1(*in); }
void to_half(const float* in, uint16_t* out, int n) {
  simd::store_half(out, n == simd::kLanes ? simd::load(in) : simd::load_n(in, n), n);
}
void to_bf16(const float* in, uint16_t* out, int n) {
  simd::store_bf16(out, n == simd::kLanes ? simd::load(in) : simd::load_n(in, n), n);
}
void from_half(const uint16_t* in, float* out, int n) {
  simd::store_n(out, n == simd::kLanes ? simd::load_half(in) : simd::load_half_n(in, n), n);
}
void from_bf16(const uint16_t* in, float* out, int n) {
  simd::store_n(out, n == simd::kLanes ? simd::load_bf16(in) : simd::load_bf16_n(in, n), n);
}
float reduce_add(const float* in) { return simd::reduce_add(simd::load(in)); }
float fma(float a, float b, float c) {
  float out[simd::kLanes];
  simd::store(out, simd::fma(simd::set1(a), simd::set1(b), simd::set1(c)));
  return out[0];
}

}  // namespace

const MathProbe kMathProbe = {unary<simd::exp>,
                              unary<simd::softplus>,
                              unary<simd::sigmoid>,
                              unary<simd::silu>,
                              exp_one,
                              to_half,
                              to_bf16,
                              from_half,
                              from_bf16,
                              reduce_add,
                              fma};

}  // namespace replayssm::test::REPLAYSSM_ISA
