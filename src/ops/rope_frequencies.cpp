#include "ops/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace replayssm::ops {
namespace {

// The pairs between which YaRN's ramp rises.
struct Ramp {
  double begin, end;

  double operator()(int32_t pair) const {
    return std::clamp((pair - begin) / (end - begin), 0.0, 1.0);
  }
};

Ramp ramp_of(int32_t rotary_dims, double theta, const RopeScaling& scaling) {
  // The pair, as a real number, that makes so many turns in the original positions.
  const auto pair_of = [&](double turns) {
    const double period = scaling.original_positions / (2 * std::numbers::pi * turns);
    return rotary_dims * std::log(period) / (2 * std::log(theta));
  };
  double begin = pair_of(scaling.beta_fast), end = pair_of(scaling.beta_slow);
  if (scaling.truncate) {
    begin = std::floor(begin);
    end = std::ceil(end);
  }
  begin = std::max(begin, 0.0);
  end = std::min(end, static_cast<double>(rotary_dims - 1));
  if (begin == end) end += 0.001;
  return {begin, end};
}

}  // namespace

double yarn_attention_factor(double factor, double weight) {
  return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

std::vector<double> rope_frequencies(int32_t rotary_dims, double theta,
                                     const RopeScaling& scaling) {
  REPLAYSSM_CHECK(rotary_dims >= 0 && rotary_dims % 2 == 0, rotary_dims, " rotary dims");
  std::vector<double> out;
  for (int32_t i = 0; i < rotary_dims / 2; ++i) {
    out.push_back(std::pow(theta, -2.0 * i / rotary_dims));
  }
  if (scaling.kind == RopeScaling::Kind::kNone) return out;
  if (scaling.kind == RopeScaling::Kind::kLinear) {
    for (double& f : out) f /= scaling.factor;
    return out;
  }
  const Ramp ramp = ramp_of(rotary_dims, theta, scaling);
  for (int32_t i = 0; i < rotary_dims / 2; ++i) {
    double& f = out[static_cast<size_t>(i)];
    f = f * (1.0 - ramp(i)) + f / scaling.factor * ramp(i);
  }
  return out;
}

}  // namespace replayssm::ops
