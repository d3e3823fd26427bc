// A decode loop of the benches: how a step goes when the state is kept by a baseline's method, and
// where the time of a step goes. It has no requests: steps over a fixed number of sequences, as one
// graph each, acceptance forced, the next step's graph launched while the one before runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/baselines/state_kernels.h"
#include "bench/state_method.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "model/cuda/weights_cuda.h"
#include "model/forward_pass.h"
#include "ops/cuda/context_cuda.h"
#include "runtime/cuda/pass_block.h"

namespace replayssm::bench {

// The text says what would fit.
class DoesNotFit : public Error {
  using Error::Error;
};

// What a launch is counted as where a step's time is split.
enum Part : uint32_t {
  kWeightsPart = 1,
  kStatePart = 2,
  kKvPart = 4,
  kRestPart = 8,
  kAllParts = 15
};

struct LoopOptions {
  StateMethod method = StateMethod::kPlain;
  int32_t max_rows = 1;  // sequences
  int64_t max_positions = 1024;
  bool exact = false;
};

// A graph's key: so many rows, each with a window of up to so many tokens; row i's window starts at
// i * window of the packed tokens.
struct StepShape {
  int32_t rows = 1;
  int32_t window = 1;
  int64_t tokens() const { return int64_t{rows} * window; }
  auto operator<=>(const StepShape&) const = default;
};

// The arrays of a step: in host memory for the caller, the same on the device.
struct StepArrays {
  PassArrays pass;
  int32_t* committed;             // [rows] so many tokens of the window, whatever was drawn
  cuda::BaselineRow* state_rows;  // [rows]
  int32_t* snapshot_slots;        // [rows, window]
};

struct StepOutcome {
  const int32_t* n_accepted;  // [rows]
  const int32_t* next;        // [rows] the token after the accepted drafts
};

// Sets of inputs that a method keeps: this window's, and the window's before.
constexpr int kept_sets(StateMethod method) {
  return method == StateMethod::kJointAdvance       ? 2
         : method == StateMethod::kActivationReplay ? 1
                                                    : 0;
}

class LoopCuda {
 public:
  // The model must outlive it. Throws DoesNotFit if the card does not hold it.
  LoopCuda(const Model& model, const OpenWeights& weights, const LoopOptions& options);
  ~LoopCuda();

  const Model& model() const { return model_; }
  Grid grid() const { return layers_.sizes.recurrent.at(0).problem.grid; }
  const MemoryUse& memory() const { return arena_->use(); }
  // Pages of a row's longest sequence: row i's are i * pages_each() + ...
  int64_t pages_each() const { return ops::pages_for(options_.max_positions); }

  // Of the shape's next step; it keeps its values until it is written again.
  StepArrays arrays(StepShape shape);
  // Captures the shape's graphs.
  void prepare(StepShape shape);
  // A graph may be launched while the step before it runs: it waits on the device for release().
  void launch(StepShape shape, int32_t kept_set);
  void release(StepShape shape);
  StepOutcome wait(StepShape shape);

  // Milliseconds of a step's launches of these parts alone.
  double time_parts(StepShape shape, uint32_t parts, int repeats);
  // Experts that the last mixture of the last pass chose; 0 if the model does not end in one.
  double experts_read() const;

 private:
  struct Block;
  struct Kept;
  class Ops;

  void build(Arena& arena);
  PassShape pass_shape(StepShape shape) const;
  Block& block(StepShape shape);
  void enqueue(Block& block, StepShape shape, int32_t kept_set, uint32_t parts, bool copies);
  void fill_state();
  void let_run(uint64_t n_steps);

  const Model& model_;
  LoopOptions options_;
  CudaLayers layers_;
  Stream stream_;
  std::unique_ptr<DeviceArena> arena_;
  CudaWeights weights_;
  StatePool pool_;
  std::unique_ptr<Kept> kept_;
  std::optional<EngineCuda> engine_;
  std::optional<ForwardScratch> scratch_;
  void* workspace_ = nullptr;
  char *step_block_ = nullptr, *outcome_block_ = nullptr;
  uint64_t* n_passed_ = nullptr;
  PinnedBuffer released_;
  std::unique_ptr<ops::cuda::CudaContext> context_;
  std::map<StepShape, std::unique_ptr<Block>> blocks_;
  Event ends_[2];
  uint64_t n_launched_ = 0, n_released_ = 0, n_waited_ = 0;
};

}  // namespace replayssm::bench
