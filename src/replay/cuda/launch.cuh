// From a traits type to a launch.
#pragma once

#include "replay/cuda/step_instances.h"
#include "replay/cuda/step_kernel.cuh"

namespace replayssm::cuda {

template <typename T>
void launch_step(const StepArgs& args, const Problem& problem, cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(sizeof(StepShared<T>));
  // Once a device is enough, and it is cheap; a launch must not depend on a static that a second
  // device would miss.
  cudaFuncSetAttribute(step_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 grid(static_cast<unsigned>(problem.n_heads * T::kValueDim / T::kRows),
                  static_cast<unsigned>(args.n_rows));
  step_kernel<T><<<grid, T::kRows, kBytes, stream>>>(args, problem);
}

template <Family kFamily, DType kCheckpoint, int kValueDim, int kKeyDim, int kHeads, int kTokens>
constexpr StepInstance instance() {
  using T = StepTraits<kFamily, kCheckpoint, kValueDim, kKeyDim, kHeads, kTokens>;
  return {kFamily, kCheckpoint, kValueDim, kKeyDim, kTokens, launch_step<T>};
}

}  // namespace replayssm::cuda
