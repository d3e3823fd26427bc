// One forward pass over packed windows of many sequences.
//
// The law: a token's logits are a pure function of its sequence's tokens, to the bit. They do not
// depend on the other rows, on window sizes, on step or sweep, on slots, pages or threads. (One
// build, instruction set and context; the replay grid and exact ops make it so.)
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/memory.h"
#include "model/model.h"
#include "model/state.h"
#include "ops/context.h"

namespace replayssm {

enum class Phase : int32_t {
  kStep,   // at most max_window positions past n; afterwards commit_step
  kSweep,  // any length, start == n; every token stands: afterwards commit_sweep
};

struct ForwardRow {
  Row row;  // row.token counts into ForwardBatch::tokens
  Phase phase = Phase::kStep;
  // Page of positions [16 i, 16 i + 16), for every i up to the window's last position. Rows must
  // not share the pages that they write.
  const int32_t* pages = nullptr;
  // StateMode::kPlain: [row.n_tokens], the slot that takes the state after each token, -1: none.
  const int32_t* state_slots = nullptr;
};

struct ForwardBatch {
  std::span<const ForwardRow> rows;
  std::span<const int32_t> tokens;        // ids, packed
  std::span<const int64_t> logit_tokens;  // indices into tokens; logits come in this order
};

struct ForwardLimits {
  int64_t max_tokens = 256;  // packed tokens of a pass; longer prompts are cut by the caller
  int64_t max_rows = 64;
  int64_t max_logits = 256;
  int64_t max_positions = 4096;  // of one sequence
};

// Sees the arguments of each recurrence of a pass before it runs: the real inputs of a layer, for
// studies of precision. Layers count as Model::recurrent() does.
using RecurrenceObserver =
    std::function<void(size_t layer, const StepArgs& args, int64_t n_tokens)>;

struct ForwardBuffers;  // scratch of a pass, forward.cpp

// Owns the scratch of a pass: run allocates nothing. One thread at a time.
class Forward {
 public:
  // Model and context must outlive it; context.isa() must be the isa of the model's plans.
  Forward(const Model& model, const ops::Context& context, const ForwardLimits& limits);
  ~Forward();
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

  // logits [logit_tokens.size(), vocab]. Commits nothing: the caller moves n and c.
  void run(const ForwardBatch& batch, StatePool& state, float* logits);

  // Empty: nobody looks.
  void observe(RecurrenceObserver observer) { observer_ = std::move(observer); }

  const ForwardLimits& limits() const { return limits_; }
  int64_t bytes() const;
  // Values so far that a 16-bit ring or checkpoint could not hold.
  int64_t n_saturated() const;

 private:
  const Model& model_;
  const ops::Context& context_;
  ForwardLimits limits_;
  std::unique_ptr<ForwardBuffers> buffers_;
  RecurrenceObserver observer_;
};

}  // namespace replayssm
