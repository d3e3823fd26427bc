// Scaled rotary frequencies, against transformers 5.24's _compute_yarn_parameters and
// _compute_linear_scaling_rope_parameters, run in double by numpy on 2026-12-01.
#include "ops/rope.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "ops/rope_frequencies.h"

namespace replayssm::ops {
namespace {

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i] / want[i], 1.0, 1e-13) << "pair " << i;
  }
}

RopeScaling yarn(double factor, double original) {
  RopeScaling out;
  out.kind = RopeScaling::Kind::kYarn;
  out.factor = factor;
  out.original_positions = original;
  out.attention_factor = yarn_attention_factor(factor);
  return out;
}

// Qwen's own advice for a million positions: 64 of 256 dimensions, theta 1e7.
TEST(RopeFrequencies, YarnOfQwen) {
  const RopeScaling scaling = yarn(4.0, 262144);
  EXPECT_NEAR(scaling.attention_factor, 1.138629436111989, 1e-15);
  expect_near(rope_frequencies(64, 1e7, scaling), {1,
                                                   0.60429639023813275,
                                                   0.36517412725483767,
                                                   0.22067340690845899,
                                                   0.1333521432163324,
                                                   0.080584218776148187,
                                                   0.048696752516586311,
                                                   0.029427271762092817,
                                                   0.017782794100389229,
                                                   0.010746078283213174,
                                                   0.0064938163157621138,
                                                   0.0039241897584845363,
                                                   0.0023713737056616554,
                                                   0.0014330125702369627,
                                                   0.00086596432336006539,
                                                   0.00047423982268010459,
                                                   0.00025693505988868084,
                                                   0.0001373497450760004,
                                                   7.2173874043091133e-05,
                                                   3.7072249820680398e-05,
                                                   1.8449222025000475e-05,
                                                   8.7597700711790042e-06,
                                                   3.8498163151487305e-06,
                                                   2.3264301023242476e-06,
                                                   1.4058533129758728e-06,
                                                   8.4955208223563982e-07,
                                                   5.1338125661428652e-07,
                                                   3.1023444018792988e-07,
                                                   1.8747355233311396e-07,
                                                   1.1328959094002045e-07,
                                                   6.8460490856609035e-08,
                                                   4.137042749857954e-08});
}

TEST(RopeFrequencies, YarnWithEveryField) {
  expect_near(
      rope_frequencies(16, 1e5, yarn(4.0, 32768)),
      {1, 0.23713737056616555, 0.056234132519034905, 0.013335214321633241, 0.0023717082451262849,
       0.00037494710466622787, 4.4456985250973067e-05, 1.0542412585714557e-05});
  RopeScaling scaling = yarn(8.0, 4096);
  scaling.beta_fast = 16;
  scaling.beta_slow = 2;
  scaling.truncate = false;
  EXPECT_NEAR(yarn_attention_factor(8.0, 1.0) / yarn_attention_factor(8.0, 0.8), 1.0356570849393496,
              1e-15);
  expect_near(
      rope_frequencies(16, 1e5, scaling),
      {1, 0.23713737056616555, 0.056234132519034905, 0.009912076389291263, 0.00043557547602531297,
       9.3736776166556968e-05, 2.2228492625486534e-05, 5.2712062928572786e-06});
}

TEST(RopeFrequencies, Linear) {
  RopeScaling scaling;
  scaling.kind = RopeScaling::Kind::kLinear;
  scaling.factor = 4;
  expect_near(rope_frequencies(16, 1e5, scaling),
              {0.25, 0.059284342641541386, 0.014058533129758726, 0.0033338035804083102,
               0.00079056941504209496, 0.00018747355233311394, 4.4456985250973067e-05,
               1.0542412585714557e-05});
}

// cos and sin of a table's row carry the attention factor.
TEST(Rope, AnglesOfYarn) {
  ThreadPool pool(1);
  const Context context(pool);
  const RopeScaling scaling = yarn(4.0, 32768);
  const auto frequencies = rope_frequencies(16, 1e5, scaling);
  const Rope rope(16, 1e5, scaling);
  const int64_t position = 100000;
  std::array<float, 16> row;
  rope.angles(context, &position, 1, row.data());
  for (size_t i = 0; i < 8; ++i) {
    const double angle = 100000 * frequencies[i];
    EXPECT_EQ(row[i], static_cast<float>(scaling.attention_factor * std::cos(angle)));
    EXPECT_EQ(row[8 + i], static_cast<float>(scaling.attention_factor * std::sin(angle)));
  }
}

}  // namespace
}  // namespace replayssm::ops
