// A kernel of the instance tables, for bf16 activations: the shape that it serves, and its
// launches.
#pragma once

#include <span>
#include <vector>

#include "replay/cuda/kernels_cuda.h"

namespace replayssm::cuda {

// Of the current device.
int multiprocessors();

struct StepInstance {
  Family family;
  DType checkpoint;
  int interval;  // of the grid: 16 or 32
  int value_dim, key_dim;
  int rows;     // state rows of a block: whole heads of one key head, or a part of one
  bool single;  // serves windows of one token only
  bool few;     // for launches that another's blocks would not fill the GPU with; the same bits
  void (*step)(const StepArgs& args, const Problem& problem, bool early, cudaStream_t stream);
  void (*sweep)(const StepArgs& args, const Problem& problem, cudaStream_t stream);
  // For launches of many rows, a block a multiprocessor (step_team.cuh); the same bits. Null if
  // there is none.
  void (*many)(const StepArgs& args, const Problem& problem, cudaStream_t stream) = nullptr;
};

// The tables of the instance files, each compiled on its own.
std::span<const StepInstance> gdn_instances();
std::span<const StepInstance> mamba2_instances();
std::span<const StepInstance> mamba2_more_instances();
std::span<const StepInstance> kda_instances();
std::span<const StepInstance> interval32_instances();
// The entries of them all, in order.
std::vector<const StepInstance*> all_instances();

// Each null if there is none.
struct StepKernels {
  const StepInstance* usual = nullptr;
  const StepInstance* few = nullptr;
};

// A problem's kernels, for windows of one token and for any: of the entries of a kind that serve
// its shape, checkpoint, interval and heads a key head, the first. Where none is for windows of one
// token only, single is any. Without any.usual there is no plan.
struct ProblemKernels {
  StepKernels single, any;
};
ProblemKernels kernels_of(const Problem& problem);

}  // namespace replayssm::cuda
