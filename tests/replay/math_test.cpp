// The vector maths of simd16.h on each instruction set: tails, error, conversions, infinities.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "harness.h"
#include "isa.h"
#include "math_probe.h"

namespace replayssm::test {
namespace {

class SimdMath : public EachIsa {
 protected:
  const MathProbe& probe() const {
    return isa() == Isa::kAvx512 ? avx512::kMathProbe
           : isa() == Isa::kAvx2 ? avx2::kMathProbe
                                 : portable::kMathProbe;
  }
};

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

// Points over the range where the functions do anything, dense, and hostile ones.
std::vector<float> arguments() {
  std::vector<float> x = {0.0f,   -0.0f,  kInf,   -kInf,  kNan,   20.0f,   20.000002f, 88.7f,
                          88.72f, 88.73f, -87.3f, -87.4f, -1e30f, 1e30f,   1e-30f,     -1e-30f,
                          1e-42f, 1.0f,   -1.0f,  -20.0f, -16.0f, 65504.f, -100.0f,    89.0f};
  for (float v = -110.0f; v < 100.0f; v += 0.00371f) x.push_back(v);
  for (float v = 1e-8f; v < 1.0f; v *= 1.01f) {
    x.push_back(v);
    x.push_back(-v);
  }
  while (x.size() % 16 != 0) x.push_back(0.5f);
  return x;
}

struct Function {
  const char* name;
  MathProbe::Unary vector;
  double (*exact)(double);
  double relative, absolute;  // error allowed
};

std::vector<Function> functions(const MathProbe& probe) {
  return {
      {"exp", probe.exp, [](double x) { return std::exp(x); }, 1e-7, 1.23e-38},
      {"softplus", probe.softplus, [](double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); },
       2.5e-7, 1.23e-38},
      {"sigmoid", probe.sigmoid, [](double x) { return 1.0 / (1.0 + std::exp(-x)); }, 1.5e-7,
       1.23e-38},
      {"silu", probe.silu, [](double x) { return x / (1.0 + std::exp(-x)); }, 2e-7, 1.2e-36},
  };
}

TEST_P(SimdMath, ErrorAgainstDouble) {
  const std::vector<float> x = arguments();
  for (const Function& f : functions(probe())) {
    std::vector<float> y(x.size());
    for (size_t i = 0; i < x.size(); i += 16) f.vector(&x[i], &y[i], 16);
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = f.exact(x[i]);
      if (std::isnan(exact)) {
        EXPECT_TRUE(std::isnan(y[i])) << f.name << " of " << x[i];
      } else if (std::fabs(exact) > 3.37e38) {  // past 88.72 counts as infinity
        EXPECT_TRUE(std::isinf(y[i]) || y[i] > 3.3e38f) << f.name << " of " << x[i];
      } else {
        const double error = std::fabs(y[i] - exact);
        EXPECT_LE(error, f.relative * std::fabs(exact) + f.absolute) << f.name << " of " << x[i];
      }
    }
  }
}

// A lane's bits depend on neither its place nor on how many lanes there are.
TEST_P(SimdMath, BodyAndTailGiveTheSameBits) {
  const std::vector<float> x = arguments();
  for (const Function& f : functions(probe())) {
    for (size_t i = 0; i < x.size(); i += 16) {
      float body[16], tail[16], shifted[16], rotated[16];
      f.vector(&x[i], body, 16);
      for (int n : {1, 7, 8, 9, 15}) {
        f.vector(&x[i], tail, n);
        ASSERT_EQ(0, std::memcmp(body, tail, n * sizeof(float))) << f.name << " at " << x[i];
      }
      for (int k = 0; k < 16; ++k) shifted[k] = x[i + (k + 5) % 16];
      f.vector(shifted, rotated, 16);
      for (int k = 0; k < 16; ++k) {
        ASSERT_EQ(bits(rotated[k]), bits(body[(k + 5) % 16])) << f.name << " at " << shifted[k];
      }
    }
  }
  for (size_t i = 0; i < x.size(); i += 16) {
    float body[16], one;
    probe().exp(&x[i], body, 16);
    for (int k = 0; k < 16; ++k) {
      probe().exp_one(&x[i + k], &one);
      ASSERT_EQ(bits(one), bits(body[k])) << x[i + k];
    }
  }
}

TEST_P(SimdMath, ExactPoints) {
  const float in[16] = {0.0f, -0.0f, kInf, -kInf, kNan, -200.0f, 200.0f, 21.5f};
  float out[16];
  probe().exp(in, out, 16);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], 1.0f);
  EXPECT_EQ(out[2], kInf);
  EXPECT_EQ(bits(out[3]), 0u);
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_EQ(bits(out[5]), 0u);
  EXPECT_EQ(out[6], kInf);
  probe().softplus(in, out, 16);
  EXPECT_EQ(out[2], kInf);
  EXPECT_EQ(out[3], 0.0f);
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_EQ(out[7], 21.5f);
  probe().sigmoid(in, out, 16);
  EXPECT_EQ(out[0], 0.5f);
  EXPECT_EQ(out[2], 1.0f);
  EXPECT_EQ(out[3], 0.0f);
  EXPECT_TRUE(std::isnan(out[4]));
}

TEST_P(SimdMath, EverySixteenBitValueWidensAsTheScalar) {
  for (uint32_t first = 0; first < 65536; first += 16) {
    uint16_t in[16];
    float half[16], bf16[16], tail[16];
    for (int i = 0; i < 16; ++i) in[i] = static_cast<uint16_t>(first + i);
    probe().from_half(in, half, 16);
    probe().from_bf16(in, bf16, 16);
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(bits(half[i]), bits(half_to_float(in[i]))) << in[i];
      ASSERT_EQ(bits(bf16[i]), bits(bf16_to_float(in[i]))) << in[i];
    }
    probe().from_half(in, tail, 11);
    ASSERT_EQ(0, std::memcmp(tail, half, 11 * sizeof(float)));
    probe().from_bf16(in, tail, 11);
    ASSERT_EQ(0, std::memcmp(tail, bf16, 11 * sizeof(float)));
  }
}

// A dense sweep over all floats, every rounding boundary of both types, and NaN with payloads.
TEST_P(SimdMath, NarrowingRoundsAsTheScalar) {
  std::vector<uint32_t> x;
  for (uint64_t b = 0; b < (uint64_t{1} << 32); b += 4099) x.push_back(static_cast<uint32_t>(b));
  for (uint32_t h = 0; h < 65536; ++h) {
    // Halfway between neighbours, and one to each side.
    const uint32_t half = bits(half_to_float(static_cast<uint16_t>(h)));
    const uint32_t bf16 = h << 16;
    for (uint32_t off : {0u, 0xfffu, 0x1000u, 0x1001u}) x.push_back(half + off);
    for (uint32_t off : {0x7fffu, 0x8000u, 0x8001u}) x.push_back(bf16 + off);
  }
  for (float v = 5.9e-8f; v < 6.2e-5f; v *= 1.0003f) x.push_back(bits(v));  // subnormal halves
  while (x.size() % 16 != 0) x.push_back(0);
  for (size_t i = 0; i < x.size(); i += 16) {
    float in[16];
    uint16_t half[16], bf16[16], tail[16];
    std::memcpy(in, &x[i], sizeof(in));
    probe().to_half(in, half, 16);
    probe().to_bf16(in, bf16, 16);
    for (int k = 0; k < 16; ++k) {
      ASSERT_EQ(half[k], float_to_half(in[k])) << std::hex << x[i + k];
      ASSERT_EQ(bf16[k], float_to_bf16(in[k])) << std::hex << x[i + k];
    }
    probe().to_half(in, tail, 5);
    ASSERT_EQ(0, std::memcmp(tail, half, 5 * sizeof(uint16_t)));
    probe().to_bf16(in, tail, 5);
    ASSERT_EQ(0, std::memcmp(tail, bf16, 5 * sizeof(uint16_t)));
  }
}

// The scalar conversions against the definition: the nearest value, ties to even.
TEST(Convert, RoundsToTheNearest) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(rng()));
    if (!std::isfinite(x)) continue;
    const uint16_t h = float_to_half(x);
    const double error = std::fabs(double{half_to_float(h)} - x);
    if (std::fabs(x) < 65504) {
      for (int step : {-1, 1}) {
        const float other = half_to_float(static_cast<uint16_t>(h + step));
        if (std::isfinite(other)) {
          EXPECT_LE(error, std::fabs(double{other} - x)) << x;
        }
      }
    } else {
      EXPECT_EQ(half_to_float(h), x > 0 ? 65504.0f : -65504.0f);
    }
    const uint16_t b = float_to_bf16(x);
    if (std::isinf(bf16_to_float(b))) continue;
    const double bf16_error = std::fabs(double{bf16_to_float(b)} - x);
    for (int step : {-1, 1}) {
      const float other = bf16_to_float(static_cast<uint16_t>(b + step));
      if (std::isfinite(other)) {
        EXPECT_LE(bf16_error, std::fabs(double{other} - x)) << x;
      }
    }
  }
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), float_to_half(1.0f));  // ties to even
  EXPECT_EQ(float_to_half(1.0f + 3 * 0x1p-11f), float_to_half(1.0f) + 2);
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), float_to_bf16(1.0f));
  EXPECT_EQ(float_to_bf16(1.0f + 3 * 0x1p-8f), float_to_bf16(1.0f) + 2);
}

TEST_P(SimdMath, SumsInOneFixedTree) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (int repeat = 0; repeat < 1000; ++repeat) {
    float x[16], h[8];
    for (float& v : x) v = normal(rng);
    for (int i = 0; i < 8; ++i) h[i] = x[i] + x[i + 8];
    EXPECT_EQ(probe().reduce_add(x),
              ((h[0] + h[4]) + (h[2] + h[6])) + ((h[1] + h[5]) + (h[3] + h[7])));
  }
  // Fused on AVX2 and AVX-512, a product and a sum on the portable set: never left to the compiler.
  const float a = 1.0f + 0x1p-12f;
  const float product = a * a;
  EXPECT_EQ(probe().fma(a, a, -product), isa() == Isa::kPortable ? 0.0f : 0x1p-24f);
}

REPLAYSSM_EACH_ISA(SimdMath);

}  // namespace
}  // namespace replayssm::test
