// What a decode step must move and compute, by kind of op: the floor that a measured step is held
// to, and a prediction from the rates that kernels reach.
#pragma once

#include <cstdint>

#include "bench/state_method.h"
#include "model/spec.h"
#include "replay/types.h"

namespace replayssm::bench {

struct StepWorkload {
  int64_t rows = 1;
  int32_t window = 1;     // tokens of a row
  double accepted = 1;    // of them, those that stand
  double context = 1024;  // positions before the window
  StateMethod state = StateMethod::kReplay;
  DType checkpoint = DType::kF32;
  bool fp8 = false;  // weights of the large products, but for the output head
  int32_t interval = 16;
  double experts_read = 0;  // of a mixture's, by all tokens; 0: as if they chose at random
};

// Milliseconds. A floor is, op by op, the larger of bytes and flops over the card's rates (card.h);
// `rest` (norms, conv, activations, draws) moves what the caches hold and has none.
struct StepTimes {
  double weights = 0, state = 0, kv = 0, rest = 0;
  double total() const { return weights + state + kv + rest; }
};

struct CostModel {
  StepTimes floor;
  StepTimes predicted;
  double weight_bytes = 0, state_bytes = 0, kv_bytes = 0;  // that a step moves
};

CostModel cost_model(const ModelSpec& spec, const StepWorkload& work);

}  // namespace replayssm::bench
