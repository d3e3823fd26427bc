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
};

// One mixer, without the norm before it.
ParameterCount count_parameters(const MixerSpec& mixer, int64_t hidden);
ParameterCount count_parameters(const ModelSpec& spec);

}  // namespace replayssm
