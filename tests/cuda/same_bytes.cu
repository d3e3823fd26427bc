#include "same_bytes.h"

namespace replayssm::test {
namespace {

__global__ void differ_kernel(const unsigned* a, const unsigned* b, int64_t n_words, int* differ) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n_words; i += step) {
    if (a[i] != b[i]) *differ = 1;
  }
}

}  // namespace

bool same_bytes(const DeviceBuffer& a, const DeviceBuffer& b) {
  if (a.bytes() != b.bytes() || a.bytes() % 4 != 0) {
    std::fprintf(stderr, "same_bytes: %lld and %lld bytes\n", static_cast<long long>(a.bytes()),
                 static_cast<long long>(b.bytes()));
    std::exit(1);
  }
  const DeviceBuffer differ(std::vector<int>{0});
  differ_kernel<<<1024, 256>>>(static_cast<const unsigned*>(a.data()),
                               static_cast<const unsigned*>(b.data()), a.bytes() / 4,
                               static_cast<int*>(differ.data()));
  cuda_check(cudaGetLastError(), "same_bytes");
  return differ.download<int>(1)[0] == 0;
}

}  // namespace replayssm::test
