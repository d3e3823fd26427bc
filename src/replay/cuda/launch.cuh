// Turns a StepTraits type into launch functions, and those into an entry of the instance tables.
#pragma once

#include <algorithm>

#include "replay/cuda/step_fold.cuh"
#include "replay/cuda/step_instances.h"
#include "replay/cuda/step_kda.cuh"
#include "replay/cuda/step_persistent.cuh"
#include "replay/cuda/step_prepare.cuh"
#include "replay/cuda/step_segment.cuh"

namespace replayssm::cuda {

// Blocks per SM that fit its shared memory with at least kRegisters registers per thread.
template <typename T, int kRegisters>
constexpr int blocks_by_memory() {
  constexpr int kMemory = 227 * 1024, kReserved = 1024;
  return std::max(1, std::min(kMemory / (static_cast<int>(sizeof(StepShared<T>)) + kReserved),
                              65536 / (T::kThreads * kRegisters)));
}

template <typename T, int kBlocks>
__global__ void __launch_bounds__(T::kThreads, kBlocks)
    step_kernel(const __grid_constant__ StepParams params) {
  extern __shared__ __align__(128) uint8_t memory[];
  StepBlock<T>(params, *reinterpret_cast<StepShared<T>*>(memory)).run();
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads)
    tail_kernel(const __grid_constant__ StepParams params) {
  extern __shared__ __align__(128) uint8_t memory[];
  StepBlock<T>(params, *reinterpret_cast<StepShared<T>*>(memory)).run_tail();
}

template <typename T>
StepParams params_of(const StepArgs& args, const Problem& problem) {
  StepParams params{};
  params.args = args;
  params.key_row_bytes = static_cast<uint32_t>(args.ring_key.row_stride * 2);
  params.value_row_bytes = static_cast<uint32_t>(args.ring_value.row_stride * 2);
  params.gate_row_bytes = static_cast<uint32_t>(args.ring_gate.row_stride * 4);
  params.ring_rows = static_cast<uint32_t>(problem.grid.ring_rows);
  params.ring_reciprocal = reciprocal_of(params.ring_rows);
  params.rows_per_key_head = problem.n_heads / problem.n_key_heads * T::kValueDim;
  params.beta_scale = problem.beta_scale;
  params.decay_gate = problem.decay_gate;
  params.decay_lower_bound = problem.decay_lower_bound;
  return params;
}

inline void launch(void (*kernel)(StepParams), const StepParams& params, dim3 grid, int threads,
                   int bytes, cudaStream_t stream) {
  // Needed once per device. It is cheap, so every launch does it: a static flag would miss a second
  // device.
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = params.early ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, params);
}

// One kernel over all rows of a batch. Grid: (row blocks of a key head, key heads, batch rows).
template <typename T>
void launch_rows(void (*kernel)(StepParams), StepParams params, const Problem& problem, bool early,
                 cudaStream_t stream) {
  constexpr int kMaxRows = 65535;  // limit of a grid's third dimension
  params.early = early;
  const Row* rows = params.args.rows;
  for (int32_t first = 0; first < params.args.n_rows; first += kMaxRows) {
    params.args.rows = rows + first;
    const dim3 grid(static_cast<unsigned>(params.rows_per_key_head / T::kRows),
                    static_cast<unsigned>(problem.n_key_heads),
                    static_cast<unsigned>(std::min(params.args.n_rows - first, kMaxRows)));
    launch(kernel, params, grid, T::kThreads, sizeof(StepShared<T>), stream);
  }
}

template <typename T, int kBlocks>
void launch_step(const StepArgs& args, const Problem& problem, bool early, cudaStream_t stream) {
  launch_rows<T>(step_kernel<T, kBlocks>, params_of<T>(args, problem), problem, early, stream);
}

template <typename T, int kConsumers, int kStates>
void launch_persistent(const StepArgs& args, const Problem& problem, cudaStream_t stream) {
  constexpr int kBytes = sizeof(PersistentShared<T, kConsumers, kStates>);
  static_assert(kBytes <= 227 * 1024);
  StepParams params = params_of<T>(args, problem);
  params.key_head_items = static_cast<uint32_t>(params.rows_per_key_head / T::kRows);
  params.row_items = params.key_head_items * static_cast<uint32_t>(problem.n_key_heads);
  params.n_items = params.row_items * static_cast<uint32_t>(args.n_rows);
  params.key_head_reciprocal = reciprocal_of(params.key_head_items);
  params.row_reciprocal = reciprocal_of(params.row_items);
  launch(persistent_kernel<T, kConsumers, kStates>, params,
         dim3(static_cast<unsigned>(multiprocessors())), T::kThreads * kConsumers, kBytes, stream);
}

template <typename T, int kBlocks>
void launch_sweep(const StepArgs& args, const Problem& problem, cudaStream_t stream) {
  const StepParams params = params_of<T>(args, problem);
  launch_rows<T>(step_kernel<T, kBlocks>, params, problem, false, stream);
  launch_rows<T>(tail_kernel<T>, params, problem, false, stream);
}

// The tile of a block. It changes speed only: every tile gives the same bits.
struct BlockTile {
  int rows;       // state rows
  int products;   // m16 row products per warp, so rows / (16 * products) warps
  bool share;     // StepTraits::kShare
  int registers;  // at least so many per thread
};

// The persistent kernel of an entry; a consumer group has BlockTile's rows. consumers == 0: none.
struct PersistentTile {
  int products;
  bool share;
  int consumers, states;  // consumer groups and state buffers per block
};

// kSingle: an entry for windows of one token. Otherwise one for any window, with its sweep.
template <Family kFamily, DType kCheckpoint, int kValueDim, int kKeyDim, bool kSingle,
          BlockTile kTile, PersistentTile kPersistent = PersistentTile{}, int kSlots = 16>
constexpr StepInstance instance() {
  using T = StepTraits<kFamily, kCheckpoint, kValueDim, kKeyDim, kTile.rows, kTile.products,
                       kTile.share, kSingle ? Kind::kSingle : Kind::kAny, kSlots>;
  StepInstance x = {kFamily,   kCheckpoint, kSlots,
                    kValueDim, kKeyDim,     kTile.rows,
                    kSingle,   false,       launch_step<T, blocks_by_memory<T, kTile.registers>()>,
                    nullptr};
  if constexpr (!kSingle) {
    using Sweep = StepTraits<kFamily, kCheckpoint, kValueDim, kKeyDim, kTile.rows, kTile.products,
                             kTile.share, Kind::kSweep, kSlots>;
    if constexpr (kPersistent.consumers > 0) {
      using Persistent =
          StepTraits<kFamily, kCheckpoint, kValueDim, kKeyDim, kTile.rows, kPersistent.products,
                     kPersistent.share, Kind::kPersistent, kSlots>;
      x.persistent = launch_persistent<Persistent, kPersistent.consumers, kPersistent.states>;
    }
    x.sweep = launch_sweep<Sweep, blocks_by_memory<Sweep, kTile.registers + 32>()>;
  }
  return x;
}

constexpr StepInstance for_small_grid(StepInstance x) {
  x.small_grid = true;
  return x;
}

}  // namespace replayssm::cuda
