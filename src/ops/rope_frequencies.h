// The frequencies of rotary positions, as the CPU and CUDA use them:
//
//   f_i = theta^(-2i/r)                             i < r/2, r = rotary_dims
//   linear  f_i / factor
//   YaRN    f_i (1 - ramp(i)) + f_i / factor * ramp(i), and cos and sin times attention_factor
//
// A pair makes P f_i / 2 pi turns in the P = original_positions that the model was trained on. With
// beta_fast turns or more YaRN leaves it as it is, with beta_slow or fewer it is stretched in full;
// ramp rises from 0 to 1 over the pairs between (https://arxiv.org/abs/2309.00071, section 3.2).
#pragma once

#include <cstdint>
#include <vector>

namespace replayssm::ops {

struct RopeScaling {
  enum class Kind : int32_t { kNone, kLinear, kYarn };
  Kind kind = Kind::kNone;
  double factor = 1.0;  // so many times the positions
  // kYarn alone.
  double original_positions = 0.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;           // the ramp's ends are whole pairs
  double attention_factor = 1.0;  // of cos and sin

  bool operator==(const RopeScaling&) const = default;
};

// YaRN's attention factor where a model names none: 0.1 weight ln(factor) + 1.
double yarn_attention_factor(double factor, double weight = 1.0);

// [rotary_dims / 2], in double.
std::vector<double> rope_frequencies(int32_t rotary_dims, double theta, const RopeScaling& scaling);

}  // namespace replayssm::ops
