// The CUDA backend's face. Arguments are those of step.h with device pointers throughout, `rows`
// and the overflow counter included; workspace is not used. Layout of a checkpoint: private, see
// export_checkpoint. Rings and activations must be 16-byte aligned, their strides multiples of
// eight elements.
#pragma once

#include <cuda_runtime_api.h>

#include "replay/kernels.h"

namespace replayssm {

class CudaPlan {
 public:
  virtual ~CudaPlan() = default;
  const Problem& problem() const { return problem_; }
  virtual int64_t checkpoint_elements() const = 0;
  virtual int64_t scale_elements() const = 0;

  // Launches one kernel; neither allocates nor synchronises; may be captured in a graph. early: it
  // may fetch rows, checkpoints and ring rows while the kernel before it in the stream still runs,
  // so that one must not write them; all else it reads and writes after that kernel's end.
  virtual void step(const StepArgs& args, cudaStream_t stream, bool early = false) const = 0;

  // Host memory, one slot, as Plan's.
  virtual void export_checkpoint(const void* slot, const float* scale, float* canonical) const = 0;
  virtual void import_checkpoint(const float* canonical, void* slot, float* scale) const = 0;

 protected:
  explicit CudaPlan(const Problem& problem) : problem_(problem) {}
  Problem problem_;
};

// A plan for the shapes of the instance table (step_instances.h), or the reason why there is none.
PlanResult<CudaPlan> plan_cuda(const Problem& problem);

}  // namespace replayssm
