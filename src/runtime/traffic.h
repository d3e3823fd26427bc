// Bytes of recurrent state moved: checkpoints and ring rows (docs/contract.md).
#pragma once

#include <cstdint>

#include "model/model.h"
#include "model/state.h"

namespace replayssm {

// `plain` is what the plain recurrence, with a snapshot a token in a window, would have read and
// written for the same windows, prefills left out.
struct StateTraffic {
  int64_t read = 0;
  int64_t written = 0;
  int64_t plain = 0;

  void add(const ModelMemory& memory, const Model& model, const Row& row, bool prefill);
};

}  // namespace replayssm
