// plan() decides once, at load, whether and how a problem runs; run never fails, never allocates.
//
// step    any window of at most max_window positions past n; commits nothing (see commit_step).
//         Rows are not checked: the caller must keep start + n_tokens - n <= max_window and slots
//         inside its pools. Otherwise rows that are still needed are overwritten
// sweep   prefill: any number of tokens from start == n, windows end at grid points, each committed
//         before the next (see commit_sweep); same bits as steps over the same tokens
// A row with n_tokens == 0 only folds. Both parallelise over (row, heads) through the caller's
// ParallelFor; bits do not depend on the number of workers, on the batch or on the row order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "replay/conv.h"
#include "replay/step.h"
#include "replay/types.h"

namespace replayssm {

// Instruction sets of the CPU backend. Bits are promised within one, not across them.
enum class Isa : int32_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };
const char* isa_name(Isa isa);
// The best set that this machine runs.
Isa best_isa();
bool isa_supported(Isa isa);

class Plan {
 public:
  virtual ~Plan() = default;

  const Problem& problem() const { return problem_; }
  // Elements of one slot's checkpoint (checkpoint dtype), and of its scales (fp32; 0 unless int8).
  virtual int64_t checkpoint_elements() const = 0;
  virtual int64_t scale_elements() const = 0;
  virtual size_t workspace_bytes(int n_workers) const = 0;

  virtual void step(const StepArgs& args, const ParallelFor& parallel) const = 0;
  virtual void sweep(const StepArgs& args, const ParallelFor& parallel) const = 0;

  // One slot's checkpoint to and from fp32 [n_heads, value_dim, key_dim]. import rounds to the
  // checkpoint's dtype; export after import of an exported state gives the same floats.
  virtual void export_checkpoint(const void* slot, const float* scale, float* canonical) const = 0;
  virtual void import_checkpoint(const float* canonical, void* slot, float* scale) const = 0;

 protected:
  explicit Plan(const Problem& problem) : problem_(problem) {}
  Problem problem_;
};

class ConvPlan {
 public:
  virtual ~ConvPlan() = default;
  const ConvProblem& problem() const { return problem_; }
  // Windows of any length: a step's window, or a whole prompt.
  virtual void run(const ConvArgs& args, const ParallelFor& parallel) const = 0;

 protected:
  explicit ConvPlan(const ConvProblem& problem) : problem_(problem) {}
  ConvProblem problem_;
};

// A plan, or the reason for not having one.
template <typename T>
struct PlanResult {
  std::shared_ptr<const T> plan;
  std::string reason;
};

PlanResult<Plan> plan_cpu(const Problem& problem, Isa isa);
PlanResult<ConvPlan> plan_cpu(const ConvProblem& problem, Isa isa);

}  // namespace replayssm
