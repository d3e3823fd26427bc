// Many small copies in few launches.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "model/state.h"

namespace replayssm::cuda {

// As Backend::copy, on the stream.
void copy_spans(std::span<const MemorySpan> from, std::span<const MemorySpan> to,
                cudaStream_t stream);

}  // namespace replayssm::cuda
