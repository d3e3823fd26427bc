// Decoding on the device: one model, its memory out of one budget, and steps over many sequences as
// graphs. A step is one copy down, one graph, one small copy up and one wait; drawing, verification
// and acceptance are in the graph. The caller keeps the sequences' numbers. A graph may be launched
// while the step before it runs: it waits on the device until the host releases it, so that a
// launch costs the device nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda/device.h"
#include "core/error.h"
#include "model/cuda/forward_cuda.h"
#include "model/cuda/model_cuda.h"
#include "ops/cuda/context_cuda.h"
#include "replay/cuda/baselines/baselines.h"
#include "runtime/cuda/pass_block.h"

namespace replayssm::bench {

// The text says what would fit.
class DoesNotFit : public Error {
  using Error::Error;
};

struct DecodeCudaOptions {
  ModelCudaOptions model;
  int32_t max_rows = 1;  // sequences
  int64_t max_positions = 1024;
  int64_t memory_bytes = 0;  // 0: what is free
  bool exact = false;
};

// A graph's key: so many rows, each with a window of up to so many tokens; row i's window stands at
// i * window of the packed tokens.
struct StepShape {
  int32_t rows = 1;
  int32_t window = 1;
  int64_t tokens() const { return int64_t{rows} * window; }
  auto operator<=>(const StepShape&) const = default;
};

// The arrays of a step: in host memory for the caller, the same on the device.
struct StepArrays {
  WindowArrays windows;
  int32_t* stands;  // [rows] 0: as drawn; else so many tokens stand (force_accepted)
  int32_t* pages;   // [rows, pages_each()]; they go to the device by send_pages()
  // Ways other than replay, else null.
  cuda::BaselineRow* state_rows;
  int32_t* snapshot_slots;  // [rows, window]
};

struct StepOutcome {
  const int32_t* n_accepted;  // [rows] drafts that stand
  const int32_t* next;        // [rows] the token after them
  const int32_t* drawn;       // [tokens]
};

class DecodeCuda {
 public:
  // Loads `folder`, or with dummy weights the configuration file alone. Throws Error if the memory
  // does not hold it, as DoesNotFit.
  DecodeCuda(const ModelDescription& description, const std::string& folder, bool dummy_weights,
             const DecodeCudaOptions& options);
  ~DecodeCuda();

  const ModelCuda& model() const { return model_; }
  const DecodeCudaOptions& options() const { return options_; }
  const MemoryUse& memory() const { return arena_->use(); }
  int64_t pages_each() const;  // pages of a row's longest text: row i's are i * pages_each() + ...
  int32_t slots_each() const;  // state slots of a row
  const Stream& stream() const { return stream_; }

  // Finite values in all states, rings and pages.
  void fill_state();

  // Of the shape's next step. All stands until it is written again.
  StepArrays arrays(StepShape shape);
  // The page table as it stands: before the first step, and whenever it has changed.
  void send_pages(StepShape shape);
  // Captures the graphs of a shape: before the first step, on arrays that hold one.
  void prepare(StepShape shape);
  // A step, in this order; at most two are between launch() and wait() at once, and all that was
  // launched is waited for before any call but these three. launch() puts the graph on the stream
  // (greedy; kept_set: PassCuda's), release() hands it the arrays and lets it run.
  void launch(StepShape shape, int32_t kept_set);
  void release(StepShape shape);
  StepOutcome wait(StepShape shape);

  // The step's pass without a graph, waited for.
  void run_eager(StepShape shape);
  // Of the last step, [tokens, vocab].
  std::vector<float> logits(StepShape shape) const;
  // Of the last step, ForwardCuda's.
  double experts_read() const { return forward_->experts_read(); }

  // Milliseconds of the shape's pass with only these parts, the mean of `repeats` graph replays.
  // It runs on the arrays of the last step and moves the state as that did.
  double time_parts(StepShape shape, uint32_t parts, int repeats);

 private:
  struct Block;

  void build(DeviceArena& arena);
  PassShape pass_shape(StepShape shape) const;
  Block& block(StepShape shape);
  void let_run(uint64_t n_steps);
  void enqueue(Block& block, StepShape shape, int32_t kept_set, uint32_t parts, bool copies);

  DecodeCudaOptions options_;
  ModelCuda model_;
  Stream stream_;
  std::unique_ptr<DeviceArena> arena_;
  void* workspace_ = nullptr;
  StatePoolCuda pools_;
  std::optional<ForwardCuda> forward_;
  std::unique_ptr<ops::cuda::CudaContext> context_;
  char* step_block_ = nullptr;     // device, arrays of any shape
  int32_t* page_table_ = nullptr;  // device
  char* outcome_block_ = nullptr;  // device
  uint64_t* n_passed_ = nullptr;   // device: graphs that have been let run
  PinnedBuffer released_;          // steps that may run: one uint64_t, which the device reads
  Event ends_[2];                  // of steps, in turn
  uint64_t n_launched_ = 0, n_released_ = 0, n_waited_ = 0;
  std::map<StepShape, std::unique_ptr<Block>> blocks_;
};

}  // namespace replayssm::bench
