// How many numbers a model's weights hold, from its shape alone.
#pragma once

#include <cstdint>

#include "model/spec.h"

namespace replayssm {

struct ParameterCount {
  int64_t total = 0;
  // Read for one token: without the embedding table, unless it is the head too, and with top_k
  // experts of a mixture.
  int64_t active = 0;
  // Of the total, in matrices that files in FP8 hold as such: the projections of the layers,
  // without routers and gates.
  int64_t projections = 0;
};

// One mixer, without the norm before it.
ParameterCount count_parameters(const MixerSpec& mixer, int64_t hidden);
ParameterCount count_parameters(const ModelSpec& spec);  // without a drafting head
ParameterCount count_parameters(const MtpSpec& mtp, int64_t hidden);

// Of the weights: 16 bits each, with `fp8` 8 for the projections.
int64_t weight_bytes(const ParameterCount& count, bool fp8);

}  // namespace replayssm
