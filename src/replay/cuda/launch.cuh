// From a traits type to a launch.
#pragma once

#include <algorithm>

#include "replay/cuda/step_fold.cuh"
#include "replay/cuda/step_instances.h"
#include "replay/cuda/step_segment.cuh"

namespace replayssm::cuda {

// Blocks that a multiprocessor holds by its shared memory, at no fewer than kRegisters a thread.
template <typename T, int kRegisters>
constexpr int blocks_by_memory() {
  constexpr int kMemory = 227 * 1024, kReserved = 1024;
  return std::min(kMemory / (static_cast<int>(sizeof(StepShared<T>)) + kReserved),
                  65536 / (T::kThreads * kRegisters));
}

template <typename T, int kBlocks>
__global__ void __launch_bounds__(T::kThreads, kBlocks)
    step_kernel(const __grid_constant__ StepArgs args, const __grid_constant__ Problem problem) {
  extern __shared__ __align__(128) uint8_t memory[];
  StepBlock<T>(args, problem, *reinterpret_cast<StepShared<T>*>(memory)).run();
}

template <typename T, int kBlocks>
void launch_step(const StepArgs& args, const Problem& problem, cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(sizeof(StepShared<T>));
  // Once a device is enough, and it is cheap; a launch must not depend on a static that a second
  // device would miss.
  cudaFuncSetAttribute(step_kernel<T, kBlocks>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kBytes);
  const dim3 grid(static_cast<unsigned>(problem.n_heads * T::kValueDim / T::kRows),
                  static_cast<unsigned>(args.n_rows));
  step_kernel<T, kBlocks><<<grid, T::kThreads, kBytes, stream>>>(args, problem);
}

template <Family kFamily, DType kCheckpoint, DType kActivation, int kValueDim, int kKeyDim,
          int kRows, int kRegisters>
constexpr StepInstance instance() {
  using T = StepTraits<kFamily, kCheckpoint, kActivation, kValueDim, kKeyDim, kRows>;
  return {kFamily,
          kCheckpoint,
          kActivation,
          kValueDim,
          kKeyDim,
          kRows,
          launch_step<T, blocks_by_memory<T, kRegisters>()>};
}

}  // namespace replayssm::cuda
