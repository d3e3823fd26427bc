// The short convolution: sixteen channels at a time, the window's tokens in order. Part of an
// instruction set's translation unit.
#pragma once

#include "replay/cpu/rows_impl.h"

namespace replayssm::cpu::REPLAYSSM_ISA {
namespace {

template <int kWidth>
void conv_width(const ConvProblem& p, const ConvArgs& a, const Row& row, int begin, int end) {
  const int64_t stop = row.start + row.n_tokens;
  for (int channel = begin; channel < end; channel += kLanes) {
    const int lanes = lanes_left(channel, end);
    V tap[kWidth];
    V input[kWidth];  // x_{t-w+1} .. x_t
    for (int i = 0; i < kWidth; ++i) {
      tap[i] = load_n(a.weight + int64_t{i} * p.n_channels + channel, lanes);
    }
    const V bias = a.bias == nullptr ? zero() : load_n(a.bias + channel, lanes);
    for (int i = 1; i < kWidth; ++i) {
      const int64_t t = row.start - kWidth + i;
      input[i] = t < 0 ? zero()
                       : load_typed(p.activation, a.ring.data,
                                    row.ring_slot * a.ring.slot_stride +
                                        t % p.ring_rows * a.ring.row_stride + channel,
                                    lanes);
    }
    for (int64_t t = row.start; t < stop; ++t) {
      const int64_t token = row.token + (t - row.start);
      for (int i = 0; i + 1 < kWidth; ++i) input[i] = input[i + 1];
      input[kWidth - 1] = load_token(p.activation, a.in, token, channel, lanes);
      V sum = bias;
      for (int i = 0; i < kWidth; ++i) sum = fma(tap[i], input[i], sum);
      store_token(p.activation, a.out, token, channel, silu(sum), lanes);
      if (t >= stop - p.ring_rows) {
        store_ring(p.activation, a.ring, row.ring_slot, t % p.ring_rows, channel, input[kWidth - 1],
                   lanes);
      }
    }
  }
}

void run_conv(const ConvProblem& p, const ConvArgs& a, const Row& row, int begin, int end) {
  switch (p.width) {
    case 2:
      return conv_width<2>(p, a, row, begin, end);
    case 3:
      return conv_width<3>(p, a, row, begin, end);
    case 4:
      return conv_width<4>(p, a, row, begin, end);
    case 5:
      return conv_width<5>(p, a, row, begin, end);
    case 6:
      return conv_width<6>(p, a, row, begin, end);
    case 7:
      return conv_width<7>(p, a, row, begin, end);
    default:
      return conv_width<8>(p, a, row, begin, end);
  }
}

}  // namespace
}  // namespace replayssm::cpu::REPLAYSSM_ISA
