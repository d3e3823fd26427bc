// The CUDA backend's face. Arguments are those of step.h with device pointers throughout, `rows`
// and the overflow counter included; workspace is not used. Layout of a checkpoint: private, see
// export_checkpoint_cuda. Rings and activations must be 16-byte aligned, their strides multiples of
// eight elements.
#pragma once

#include <cuda_runtime_api.h>

#include "replay/kernels.h"

namespace replayssm {

// What the caller knows of a step; every choice gives the same bits.
struct StepHints {
  // Rows, checkpoints and ring rows may be fetched while the kernel before this one in the stream
  // still runs: that kernel does not write them. All else is read and written after its end.
  bool early = false;
  // Every window starts at n and has at most one token: a smaller kernel will do.
  bool single = false;
};

class CudaPlan {
 public:
  virtual ~CudaPlan() = default;
  const Problem& problem() const { return problem_; }
  virtual int64_t checkpoint_elements() const = 0;
  virtual int64_t scale_elements() const = 0;

  // Launches kernels; neither allocates nor synchronises; may be captured in a graph. Positions
  // stay below 2^31.
  virtual void step(const StepArgs& args, cudaStream_t stream, StepHints hints = {}) const = 0;
  virtual void sweep(const StepArgs& args, cudaStream_t stream) const = 0;

 protected:
  explicit CudaPlan(const Problem& problem) : problem_(problem) {}
  Problem problem_;
};

// A plan for the shapes of the instance tables (step_instances.h) or, with fp32 activations, of the
// general kernel (general_cuda.h); or the reason why there is none.
PlanResult<CudaPlan> plan_cuda(const Problem& problem);

}  // namespace replayssm
