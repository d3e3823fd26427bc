// One byte budget for all that an engine holds; what it is spent on is decided here, at load.
#pragma once

#include "runtime/backend.h"
#include "runtime/engine.h"
#include "runtime/runner.h"

namespace replayssm {

struct BudgetPlan {
  int32_t max_sequences = 0;  // at once: the options', or as many as fit
  PoolSizes pools;            // the rest goes to snapshots and pages
  ForwardLimits forward;
  RunnerLimits drafts;  // of the draft model
  MemoryReport report;
};

// Windows with all logits are this long at most: their logits are scratch.
inline constexpr int64_t kScoreTokens = 64;

// memory: the model's on the device. Throws Error, saying what would fit, if the budget holds not
// even one sequence.
BudgetPlan fit_budget(const Model& model, const ModelMemory& memory, const Model* draft,
                      const Device& device, const EngineOptions& options);

}  // namespace replayssm
