// The baseline of replay: plain decoding. It is the recurrence as written in step.h; the state is
// read and written for every token. With speculation, the state after every drafted token is kept
// as a snapshot, since any of them may be the last one accepted. Inputs and checkpoint layout are
// those of Plan. The rings of StepArgs, a row's c and its start (== n) are not used.
#pragma once

#include <memory>
#include <string>

#include "replay/kernels.h"
#include "replay/step.h"

namespace replayssm {

struct PlainArgs {
  StepArgs base;
  // [n_rows, write_slots_stride]: the slot that receives the state after each token of the window;
  // -1: not written (a prefill's tokens but the last). Token 0 may write to the row's read_slot.
  const int32_t* write_slots = nullptr;
  int32_t write_slots_stride = 0;
};

class PlainPlan {
 public:
  virtual ~PlainPlan() = default;
  const Problem& problem() const { return problem_; }
  virtual int64_t checkpoint_elements() const = 0;
  virtual size_t workspace_bytes(int n_workers) const = 0;
  // Any number of tokens per row. A row with n == 0 starts from the zero state and reads no slot.
  virtual void run(const PlainArgs& args, const ParallelFor& parallel) const = 0;

 protected:
  explicit PlainPlan(const Problem& problem) : problem_(problem) {}
  Problem problem_;
};

// State dtypes fp32, fp16 (saturates) and bf16.
PlanResult<PlainPlan> plan_plain_cpu(const Problem& problem, Isa isa);

}  // namespace replayssm
