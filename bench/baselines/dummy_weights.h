// Weights that stand for real ones when a model is only timed.
#pragma once

#include "model/cuda/weight_source.h"

namespace replayssm::bench {

// Small values that keep activations near one, from a keyed hash. `type` is every matrix's that may
// be held in few bits.
OpenWeights dummy_weights(ops::cuda::WeightType type);

}  // namespace replayssm::bench
