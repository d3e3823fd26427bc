// What a decode step does on the device before its pass and after the draws.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "replay/cuda/baselines/baselines.h"

namespace replayssm::cuda {

// Counts this step in *n_passed, and holds the stream until *released, in page-locked host memory,
// is no less.
void wait_for_release(const uint64_t* released, uint64_t* n_passed, cudaStream_t stream);

// Where stands[r] > 0, so many tokens of row r's window stand whatever was drawn:
// n_accepted[r] = stands[r] - 1, next[r] = what was drawn after the last of them. For timing at a
// given rate of acceptance.
void force_accepted(int32_t n_rows, const int32_t* stands, const int64_t* first_token,
                    const int32_t* drawn, int32_t* n_accepted, int32_t* next, cudaStream_t stream);

// to[r]: the second pass of activation replay over row r of `from`, n_accepted[r] + 1 tokens kept.
void make_rebuild_rows(int32_t n_rows, const BaselineRow* from, const int32_t* n_accepted,
                       BaselineRow* to, cudaStream_t stream);

}  // namespace replayssm::cuda
