// Why no backend can run a problem; empty if the problem is valid. A backend adds what it does not
// support itself.
#pragma once

#include <string>

#include "replay/conv.h"
#include "replay/step.h"
#include "replay/types.h"

namespace replayssm {

inline std::string problem_reason(const Problem& p) {
  constexpr int kMaxHeadDim = 1024;
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (p.n_heads < 1 || p.n_key_heads < 1 || p.n_heads % p.n_key_heads != 0) {
    return "n_heads " + number(p.n_heads) + " is not a multiple of n_key_heads " +
           number(p.n_key_heads);
  }
  if (p.family == Family::kKda && p.n_heads != p.n_key_heads) {
    return "KDA needs n_key_heads == n_heads";
  }
  if (p.family == Family::kKda && p.decay_gate == DecayGate::kBounded &&
      !(p.decay_lower_bound < 0)) {
    return "KDA's bounded gate needs decay_lower_bound below 0, not " +
           std::to_string(p.decay_lower_bound);
  }
  if (p.value_dim < 1 || p.key_dim < 1 || p.key_dim > kMaxHeadDim || p.value_dim > kMaxHeadDim) {
    return "head dims " + number(p.value_dim) + " x " + number(p.key_dim) + " are outside 1.." +
           number(kMaxHeadDim);
  }
  const int b = p.grid.interval;
  if (b != 8 && b != 16 && b != 32 && b != 64) {
    return "grid interval " + number(b) + " is not 8, 16, 32 or 64";
  }
  if (p.max_window < 1 || p.max_window > b) {
    return "max_window " + number(p.max_window) + " is outside 1.." + number(b);
  }
  if (p.grid.ring_rows < Grid::rows_for(b, p.max_window)) {
    return "ring_rows " + number(p.grid.ring_rows) +
           " is below B + 2 max_window - 1 = " + number(Grid::rows_for(b, p.max_window));
  }
  if (p.activation != DType::kF32 && p.activation != DType::kBF16) {
    return std::string("activations are fp32 or bf16, not ") + dtype_name(p.activation);
  }
  if (p.ring == DType::kI8) return "the ring is fp32, fp16 or bf16, not int8";
  return "";
}

inline std::string problem_reason(const ConvProblem& p) {
  if (p.n_channels < 1) return "n_channels " + std::to_string(p.n_channels) + " is below 1";
  if (p.width < 2 || p.width > 8) {
    return "conv width " + std::to_string(p.width) + " is outside 2..8";
  }
  if (p.ring_rows < p.width) {
    return "conv ring_rows " + std::to_string(p.ring_rows) + " is below the width " +
           std::to_string(p.width);
  }
  if (p.activation != DType::kF32 && p.activation != DType::kBF16) {
    return std::string("activations are fp32 or bf16, not ") + dtype_name(p.activation);
  }
  return "";
}

}  // namespace replayssm
