#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "model/cuda/fill.h"

namespace replayssm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 132 * 16;

__device__ uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ void put(float* to, float x) { *to = x; }
__device__ void put(__half* to, float x) { *to = __float2half_rn(x); }
__device__ void put(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }
__device__ void put(uint8_t* to, float x) { *to = static_cast<uint8_t>(128 + __float2int_rn(x)); }

template <typename T>
__global__ void fill_kernel(T* data, int64_t n, uint64_t key, float mean, float scale) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    const uint32_t bits = static_cast<uint32_t>(mixed(key ^ static_cast<uint64_t>(i)) >> 40);
    put(data + i, fmaf(scale, static_cast<float>(bits) * 0x1p-23f - 1.0f, mean));
  }
}

// Sign, three of the exponent's four bits, mantissa: neither large values nor NaN.
__global__ void e4m3_kernel(uint64_t* data, int64_t n, uint64_t key) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    data[i] = mixed(key ^ static_cast<uint64_t>(i)) & 0xbfbfbfbfbfbfbfbfull;
  }
}

// Keys that count up must not give shifted copies of one another.
uint64_t spread(uint64_t key) { return key * 0xd1342543de82ef95ull + 0x2545f4914f6cdd1dull; }

template <typename T>
void launch(void* data, int64_t n, uint64_t key, float mean, float scale, cudaStream_t stream) {
  fill_kernel<<<kBlocks, kThreads, 0, stream>>>(static_cast<T*>(data), n, key, mean, scale);
}

}  // namespace

void fill(void* data, DType dtype, int64_t n, uint64_t key, float mean, float scale,
          cudaStream_t stream) {
  if (n == 0) return;
  switch (dtype) {
    case DType::kF32:
      return launch<float>(data, n, spread(key), mean, scale, stream);
    case DType::kF16:
      return launch<__half>(data, n, spread(key), mean, scale, stream);
    case DType::kBF16:
      return launch<__nv_bfloat16>(data, n, spread(key), mean, scale, stream);
    case DType::kI8:
      return launch<uint8_t>(data, n, spread(key), mean, scale, stream);
  }
}

// Memory comes in whole pieces of 256 bytes: the last eight bytes may be filled beyond n.
void fill_e4m3(void* data, int64_t n, uint64_t key, cudaStream_t stream) {
  const int64_t words = (n + 7) / 8;
  e4m3_kernel<<<kBlocks, kThreads, 0, stream>>>(static_cast<uint64_t*>(data), words, spread(key));
}

}  // namespace replayssm::cuda
