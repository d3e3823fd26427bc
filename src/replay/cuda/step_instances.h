// A kernel of the instance tables: the shape that it serves, and its launch.
#pragma once

#include "replay/cuda/kernels_cuda.h"

namespace replayssm::cuda {

using LaunchStep = void (*)(const StepArgs& args, const Problem& problem, bool early,
                            cudaStream_t stream);

struct StepInstance {
  Family family;
  DType checkpoint, activation;
  int value_dim, key_dim;
  int rows;  // state rows of a block: whole heads of one key head, or a part of one
  LaunchStep launch_single;  // every window has at most one token
  LaunchStep launch;
};

// The tables of the instance files, each compiled on its own.
const StepInstance* gdn_instances(int* count);
const StepInstance* mamba2_instances(int* count);

}  // namespace replayssm::cuda
