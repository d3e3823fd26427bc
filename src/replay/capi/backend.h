// The C interface's view of a backend: a layer's plan and a convolution's. Arguments are already
// checked.
#pragma once

#include <replayssm/replayssm.h>

#include <memory>

#include "replay/commit.h"
#include "replay/kernels.h"

namespace replayssm::capi {

// Where a backend's memory is, and the alignment that it requires.
struct Memory {
  bool is_host;
  int64_t stride_multiple, alignment;
};
inline constexpr Memory kHostMemory = {true, 1, 1};
inline constexpr Memory kDeviceMemory = {false, 8, 16};

class Layer {
 public:
  virtual ~Layer() = default;
  virtual const Memory& memory() const = 0;
  virtual const Problem& problem() const = 0;
  virtual int64_t checkpoint_elements() const = 0;
  virtual int64_t scale_elements() const = 0;
  virtual size_t workspace_bytes(int n_workers) const = 0;

  // hints: RSSM_HINT_*, true of the rows.
  virtual rssm_status step(const StepArgs& args, const ParallelFor& parallel, int32_t hints,
                           void* stream) const = 0;
  virtual rssm_status sweep(const StepArgs& args, const ParallelFor& parallel,
                            void* stream) const = 0;
  virtual rssm_status commit(const CommitArgs& args, void* stream) const = 0;
  virtual rssm_status export_checkpoint(const void* slot, const float* scale, float* canonical,
                                        void* stream) const = 0;
  virtual rssm_status import_checkpoint(const float* canonical, void* slot, float* scale,
                                        void* stream) const = 0;
};

class Conv {
 public:
  virtual ~Conv() = default;
  virtual const Memory& memory() const = 0;
  virtual const ConvProblem& problem() const = 0;
  // n_tokens: of the packed activations; a backend may shape its launch by it.
  virtual rssm_status run(const ConvArgs& args, int64_t n_tokens, const ParallelFor& parallel,
                          void* stream) const = 0;
};

PlanResult<Layer> layer_cpu(const Problem& problem);
PlanResult<Conv> conv_cpu(const ConvProblem& problem);
// A library built without CUDA answers with that as the reason.
PlanResult<Layer> layer_cuda(const Problem& problem);
PlanResult<Conv> conv_cuda(const ConvProblem& problem);

}  // namespace replayssm::capi
