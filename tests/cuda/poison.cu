#include "device.h"
#include "poison.h"

namespace replayssm::test {
namespace {

__global__ void poison_kernel(int n_words) {
  extern __shared__ volatile unsigned words[];
  for (int i = threadIdx.x; i < n_words; i += blockDim.x) words[i] = 0xffffffffu;
}

}  // namespace

void poison_shared_memory() {
  int device = 0, n_bytes = 0, n_multiprocessors = 0;
  cuda_check(cudaGetDevice(&device), "device");
  cuda_check(cudaDeviceGetAttribute(&n_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "shared memory");
  cuda_check(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device),
             "multiprocessors");
  cuda_check(
      cudaFuncSetAttribute(poison_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes),
      "shared memory of a block");
  // A block fills an SM, so each gets one.
  poison_kernel<<<static_cast<unsigned>(n_multiprocessors), 256, static_cast<size_t>(n_bytes)>>>(
      n_bytes / 4);
  cuda_check(cudaGetLastError(), "poison");
}

}  // namespace replayssm::test
