// Rotary positions, half-split pairs (i, i + r/2) of the first r = rotary_dims of a head:
//
//   x[i]       = x[i] cos(p f_i) - x[i + r/2] sin(p f_i)
//   x[i + r/2] = x[i + r/2] cos(p f_i) + x[i] sin(p f_i)        i < r/2, f_i: rope_frequencies.h
//
// Angles, cos and sin are taken in double and rounded to fp32, so they depend on (p, i) alone. With
// YaRN cos and sin carry its attention factor.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/context.h"
#include "ops/matrix.h"
#include "ops/rope_frequencies.h"

namespace replayssm::ops {

class Rope {
 public:
  Rope() = default;
  Rope(int32_t rotary_dims, double theta, const RopeScaling& scaling = {});

  int32_t rotary_dims() const { return 2 * static_cast<int32_t>(frequencies_.size()); }

  // table [n_tokens, rotary_dims]: a row is cos of all pairs, then sin. Once a step, for all
  // layers.
  void angles(const Context& context, const int64_t* positions, int64_t n_tokens,
              float* table) const;

  // Rotates x [tokens, heads, dim] in place, fp32 or bf16, fp32 maths. table as above.
  void apply(const Context& context, const float* table, Heads x) const;

 private:
  std::vector<double> frequencies_;
  double factor_ = 1.0;  // of cos and sin
};

}  // namespace replayssm::ops
