// The short convolution on CUDA. Arguments are those of conv.h with device pointers throughout,
// `rows` included. Pointers must be 16-byte aligned, strides multiples of eight elements.
#pragma once

#include <cuda_runtime_api.h>

#include "replay/kernels.h"

namespace replayssm {

class CudaConvPlan {
 public:
  virtual ~CudaConvPlan() = default;
  const ConvProblem& problem() const { return problem_; }
  // Windows of any length, one kernel. n_tokens, the sum of the rows' tokens or an estimate, shapes
  // the launch and nothing else. Neither allocates nor synchronises; may be captured in a graph.
  virtual void run(const ConvArgs& args, int64_t n_tokens, cudaStream_t stream) const = 0;

 protected:
  explicit CudaConvPlan(const ConvProblem& problem) : problem_(problem) {}
  ConvProblem problem_;
};

PlanResult<CudaConvPlan> plan_cuda(const ConvProblem& problem);

}  // namespace replayssm
