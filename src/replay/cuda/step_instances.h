// The instance tables, for bf16 activations: the shape that an entry serves and its launch
// functions.
#pragma once

#include <span>
#include <vector>

#include "replay/cuda/kernels_cuda.h"

namespace replayssm::cuda {

// SMs of the current device.
int multiprocessors();

struct StepInstance {
  Family family;
  DType checkpoint;
  int interval;  // of the grid: 16 or 32
  int value_dim, key_dim;
  int rows;         // state rows per block: whole heads of one key head, or a part of one head
  bool single;      // serves windows of one token only
  bool small_grid;  // variant for launches too small to fill the GPU; the same bits
  void (*step)(const StepArgs& args, const Problem& problem, bool early, cudaStream_t stream);
  void (*sweep)(const StepArgs& args, const Problem& problem, cudaStream_t stream);
  // Persistent kernel for launches of many rows, one block per SM (step_persistent.cuh); the same
  // bits. May be null.
  void (*persistent)(const StepArgs& args, const Problem& problem, cudaStream_t stream) = nullptr;
};

// One table per instance file; each file is compiled on its own.
std::span<const StepInstance> gdn_instances();
std::span<const StepInstance> mamba2_instances();
std::span<const StepInstance> mamba2_more_instances();
std::span<const StepInstance> kda_instances();
std::span<const StepInstance> interval32_instances();
// All entries, in order.
std::vector<const StepInstance*> all_instances();

// Null if there is no such entry.
struct StepKernels {
  const StepInstance* standard = nullptr;
  const StepInstance* small_grid = nullptr;
};

// A problem's kernels for windows of one token and for any window: the first entry of each kind
// that serves its shape, checkpoint, interval and heads per key head. If no entry is for single
// tokens, `single` is `any`. If any.standard is null there is no plan.
struct ProblemKernels {
  StepKernels single, any;
};
ProblemKernels kernels_of(const Problem& problem);

}  // namespace replayssm::cuda
