// Operations on sequences on CUDA other than steps: commits, and checkpoints in and out. Each is
// one kernel, all pointers are the device's; neither allocates nor synchronises; may be captured in
// a graph.
#pragma once

#include <cuda_runtime_api.h>

#include "replay/commit.h"
#include "replay/step.h"

namespace replayssm {

// commit_row for every row.
void commit_cuda(const Grid& grid, const CommitArgs& args, cudaStream_t stream);

// One slot of a problem's CUDA plan, from and to fp32 [n_heads, value_dim, key_dim]. Import rounds
// to the checkpoint's dtype as the CPU's does; `scale` is the slot's, int8 only.
void export_checkpoint_cuda(const Problem& problem, const void* slot, const float* scale,
                            float* canonical, cudaStream_t stream);
void import_checkpoint_cuda(const Problem& problem, const float* canonical, void* slot,
                            float* scale, cudaStream_t stream);

}  // namespace replayssm
