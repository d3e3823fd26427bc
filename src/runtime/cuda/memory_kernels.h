// The engine's own small kernels: many small copies in few launches, and tokens that a pass takes
// where the one before drew them.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "model/state.h"

namespace replayssm::cuda {

// As Backend::copy, on the stream.
void copy_spans(std::span<const MemorySpan> from, std::span<const MemorySpan> to,
                cudaStream_t stream);

// tokens[i] < 0 becomes drawn[-1 - tokens[i]] (drawn_token() of runtime/backend.h).
void resolve_tokens(int32_t* tokens, int64_t n, const int32_t* drawn, cudaStream_t stream);

}  // namespace replayssm::cuda
