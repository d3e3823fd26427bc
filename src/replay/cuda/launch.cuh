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
    step_kernel(const __grid_constant__ StepParams params) {
  extern __shared__ __align__(128) uint8_t memory[];
  StepBlock<T>(params, *reinterpret_cast<StepShared<T>*>(memory)).run();
}

template <typename T, int kBlocks>
void launch_step(const StepArgs& args, const Problem& problem, bool early, cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(sizeof(StepShared<T>));
  // Once a device is enough, and it is cheap; a launch must not depend on a static that a second
  // device would miss.
  cudaFuncSetAttribute(step_kernel<T, kBlocks>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kBytes);
  StepParams params;
  params.args = args;
  params.key_row_bytes = static_cast<uint32_t>(args.ring_key.row_stride * 2);
  params.value_row_bytes = static_cast<uint32_t>(args.ring_value.row_stride * 2);
  params.gate_row_bytes = static_cast<uint32_t>(args.ring_gate.row_stride * 4);
  params.ring_rows = static_cast<uint32_t>(problem.grid.ring_rows);
  params.ring_reciprocal = static_cast<uint32_t>((uint64_t{1} << 32) / params.ring_rows);
  params.rows_per_key_head = problem.n_heads / problem.n_key_heads * T::kValueDim;
  params.beta_scale = problem.beta_scale;
  constexpr int kMostRows = 65535;  // of a grid's third dimension
  for (int32_t first = 0; first < args.n_rows; first += kMostRows) {
    params.args.rows = args.rows + first;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(params.rows_per_key_head / T::kRows),
                          static_cast<unsigned>(problem.n_key_heads),
                          static_cast<unsigned>(std::min(args.n_rows - first, kMostRows)));
    config.blockDim = T::kThreads;
    config.dynamicSmemBytes = kBytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = early ? 1 : 0;
    cudaLaunchKernelEx(&config, step_kernel<T, kBlocks>, params);
  }
}

// How a block is cut: kProducts and kShare of StepTraits, and the least registers of a thread.
struct Cut {
  int products;
  bool share;
  int registers;
};

// An instance for windows of one token and one for any.
template <Family kFamily, DType kCheckpoint, DType kActivation, int kValueDim, int kKeyDim,
          int kSingleRows, Cut kSingle, int kRows, Cut kAny>
constexpr StepInstance instance() {
  using Single = StepTraits<kFamily, kCheckpoint, kActivation, kValueDim, kKeyDim, kSingleRows,
                            kSingle.products, kSingle.share, true>;
  using Any = StepTraits<kFamily, kCheckpoint, kActivation, kValueDim, kKeyDim, kRows,
                         kAny.products, kAny.share, false>;
  return {kFamily,
          kCheckpoint,
          kActivation,
          kValueDim,
          kKeyDim,
          std::max(kSingleRows, kRows),
          launch_step<Single, blocks_by_memory<Single, kSingle.registers>()>,
          launch_step<Any, blocks_by_memory<Any, kAny.registers>()>};
}

}  // namespace replayssm::cuda
