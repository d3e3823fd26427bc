// A programmatic launch: the kernel may start while the one ahead of it in the stream still runs,
// which hides its launch and what it does before it waits (ptx.cuh). Every block of the kernel must
// wait before it touches memory that any kernel writes.
#pragma once

#include <cuda_runtime.h>

namespace replayssm::cuda {

template <typename... Params, typename... Args>
cudaError_t launch_in_turn(void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes,
                           cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

}  // namespace replayssm::cuda
