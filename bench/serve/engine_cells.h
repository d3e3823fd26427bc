// Decoding by the engine that `serve` runs: its scheduler, pages, sampler and acceptance, with
// drafts of a given rate of acceptance. One engine measures several batch sizes, the small first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/engine.h"

namespace replayssm::bench {

struct EngineCells {
  int32_t window = 1;
  double accepted = 1;  // tokens committed a step, on average: 1 .. window
  int32_t context = 1024;
  std::vector<int32_t> batches;  // rising
  int steps = 200;               // measured of each
  int least_steps = 200;         // of a batch whose steps take longer than so many seconds in all
  double seconds = 1e9;
};

// Of one batch size.
struct EngineTimes {
  int32_t batch = 0;
  double context = 0;           // positions before a step, the mean over sequences and steps
  std::vector<double> step_ms;  // from one step's tokens to the next's
};

// Contexts are around cells.context on average over the measured steps, and spread over 128
// positions, so that the phases of the grid are even. Throws Error if the card does not hold the
// largest batch.
void measure_engine(const std::shared_ptr<const Model>& model, std::unique_ptr<Device> device,
                    const ops::Context& context, const EngineCells& cells,
                    const std::function<void(const EngineTimes&)>& done);

}  // namespace replayssm::bench
