#include "compare_bytes.h"

namespace replayssm::test {
namespace {

__global__ void differ_kernel(const unsigned* a, const unsigned* b, int64_t n_words, int* differ) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n_words; i += step) {
    if (a[i] != b[i]) *differ = 1;
  }
}

}  // namespace

void compare_bytes(const DeviceBuffer& a, const DeviceBuffer& b, int* differ) {
  if (a.bytes() != b.bytes() || a.bytes() % 4 != 0) {
    std::fprintf(stderr, "compare_bytes: %lld and %lld bytes\n", static_cast<long long>(a.bytes()),
                 static_cast<long long>(b.bytes()));
    std::exit(1);
  }
  differ_kernel<<<1024, 256>>>(static_cast<const unsigned*>(a.data()),
                               static_cast<const unsigned*>(b.data()), a.bytes() / 4, differ);
  cuda_check(cudaGetLastError(), "compare_bytes");
}

}  // namespace replayssm::test
