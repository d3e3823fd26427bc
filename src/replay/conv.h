// The short causal depthwise convolution in front of a recurrent layer.
//
//   y_t[ch] = SiLU(bias[ch] + sum_{i=0}^{w-1} weight[i, ch] x_{t-w+1+i}[ch]),   x before 0 is 0
//
// Its state is a ring of raw inputs by absolute position, so rollback is the same n as the layer's.
#pragma once

#include <cstdint>

#include "replay/grid.h"
#include "replay/step.h"
#include "replay/types.h"

namespace replayssm {

struct ConvProblem {
  int32_t n_channels = 1;
  int32_t width = 4;               // w: 2..8
  int32_t ring_rows = 4;           // >= w - 1 + T_max
  DType activation = DType::kF32;  // x, ring and y: fp32 or bf16
};

struct ConvArgs {
  const Row* rows = nullptr;  // n, start, n_tokens, token, read_slot (-1 skips), ring_slot are read
  int32_t n_rows = 0;
  Tokens in;                      // x [n_channels]
  MutableTokens out;              // may not overlap `in`
  const float* weight = nullptr;  // [w, n_channels]: tap i of all channels is contiguous
  const float* bias = nullptr;    // [n_channels] or null
  Ring ring;                      // [n_channels] a row, activation dtype
};

}  // namespace replayssm
