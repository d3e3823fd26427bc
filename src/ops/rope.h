// Rotary positions, half-split pairs (i, i + r/2) of the first r = rotary_dims of a head:
//
//   x[i]       = x[i] cos(p f_i) - x[i + r/2] sin(p f_i)
//   x[i + r/2] = x[i + r/2] cos(p f_i) + x[i] sin(p f_i)        f_i = theta^(-2i/r), i < r/2
//
// Angles, cos and sin are taken in double and rounded to fp32, so they depend on (p, i) alone.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/context.h"
#include "ops/matrix.h"

namespace replayssm::ops {

class Rope {
 public:
  Rope() = default;
  Rope(int32_t rotary_dims, double theta);
  explicit Rope(std::vector<double> inverse_frequencies);  // scaled variants

  int32_t rotary_dims() const { return 2 * static_cast<int32_t>(frequencies_.size()); }

  // table [n_tokens, rotary_dims]: a row is cos of all pairs, then sin. Once a step, for all
  // layers.
  void angles(const Context& context, const int64_t* positions, int64_t n_tokens,
              float* table) const;

  // Rotates x [tokens, heads, dim] in place, fp32 or bf16, fp32 maths. table as above.
  void apply(const Context& context, const float* table, Heads x) const;

 private:
  std::vector<double> frequencies_;
};

}  // namespace replayssm::ops
