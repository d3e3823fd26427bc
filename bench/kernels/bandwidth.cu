#include "device.h"

namespace replayssm::bench {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 16;  // of 16 bytes a thread: 64 KB a block

__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* data, uint4* sink) {
  const uint4* from = data + int64_t{blockIdx.x} * kThreads * kLoads + threadIdx.x;
  uint4 x[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) x[i] = __ldcs(from + i * kThreads);
  unsigned all = 0;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) all |= x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
  // Hardly ever true, which the compiler cannot know.
  if (all == 0x5a5a5a5au) *sink = x[0];
}

}  // namespace

void launch_read(const void* data, int64_t bytes, void* sink, cudaStream_t stream) {
  const int64_t block = int64_t{kThreads} * kLoads * static_cast<int64_t>(sizeof(uint4));
  read_kernel<<<static_cast<unsigned>(bytes / block), kThreads, 0, stream>>>(
      static_cast<const uint4*>(data), static_cast<uint4*>(sink));
}

}  // namespace replayssm::bench
