// Shared by the dense kernels: typed loads and stores of eight elements, reductions, launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/error.h"
#include "ops/cuda/context_cuda.h"
#include "ops/matrix.h"
#include "replay/cuda/launch_in_turn.cuh"
#include "replay/cuda/ptx.cuh"

namespace replayssm::ops::cuda {

using replayssm::cuda::exp_fast;
using replayssm::cuda::let_next_kernel_start;
using replayssm::cuda::pack_bf16;
using replayssm::cuda::unpack_bf16;
using replayssm::cuda::wait_for_kernels_ahead;

constexpr int64_t kEight = 8;  // elements that a thread handles at once

inline void check_launch(const char* op) {
  const cudaError_t error = cudaPeekAtLastError();
  if (error != cudaSuccess) fail(op, ": ", cudaGetErrorString(error));
}

// As replay/cuda/launch_in_turn.cuh says. Every block of the kernel calls start_in_turn() first, or
// its two halves with work between them that reads nothing but weights.
template <typename Kernel, typename... Args>
void launch_in_turn(const CudaContext& context, const char* op, Kernel kernel, dim3 grid,
                    int threads, size_t shared_bytes, Args&&... args) {
  const cudaError_t error = replayssm::cuda::launch_in_turn(
      kernel, grid, threads, shared_bytes, context.stream(), std::forward<Args>(args)...);
  if (error != cudaSuccess) fail(op, ": ", cudaGetErrorString(error));
}
__device__ __forceinline__ void start_in_turn() {
  let_next_kernel_start();
  wait_for_kernels_ahead();
}

inline bool is_activation(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

// True if every run of eight elements can be accessed in 16-byte pieces.
inline bool in_pieces(const void* data, DType dtype, int64_t cols, int64_t stride,
                      int64_t other_stride = 0) {
  const int64_t bytes = dtype_bytes(dtype);
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && cols % kEight == 0 &&
         stride * bytes % 16 == 0 && other_stride * bytes % 16 == 0;
}
inline bool in_pieces(ConstMatrix x) { return in_pieces(x.data, x.dtype, x.cols, x.stride); }
inline bool in_pieces(ConstHeads x) {
  return in_pieces(x.data, x.dtype, x.dim, x.token_stride, x.head_stride);
}

__device__ __forceinline__ const void* element_at(const void* base, DType dtype, int64_t index) {
  return static_cast<const char*>(base) + index * (dtype == DType::kF32 ? 4 : 2);
}
__device__ __forceinline__ void* element_at(void* base, DType dtype, int64_t index) {
  return static_cast<char*>(base) + index * (dtype == DType::kF32 ? 4 : 2);
}

__device__ __forceinline__ float load_one(const void* base, DType dtype, int64_t index) {
  if (dtype == DType::kF32) return static_cast<const float*>(base)[index];
  if (dtype == DType::kBF16) {
    return __bfloat162float(static_cast<const __nv_bfloat16*>(base)[index]);
  }
  return __half2float(static_cast<const __half*>(base)[index]);
}
__device__ __forceinline__ void store_one(void* base, DType dtype, int64_t index, float x) {
  if (dtype == DType::kF32) {
    static_cast<float*>(base)[index] = x;
  } else {
    static_cast<__nv_bfloat16*>(base)[index] = __float2bfloat16_rn(x);
  }
}

// Elements [index, index + n) of n <= 8; the rest of x is zero. kPieces: n is 8, in 16-byte pieces.
template <bool kPieces>
__device__ __forceinline__ void load_eight(float x[8], const void* base, DType dtype, int64_t index,
                                           int n) {
  if constexpr (kPieces) {
    if (dtype == DType::kF32) {
      const float4* p = reinterpret_cast<const float4*>(static_cast<const float*>(base) + index);
      const float4 a = p[0], b = p[1];
      x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
      x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
      const uint4 a = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(base) + index);
      const uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair =
            dtype == DType::kBF16 ? unpack_bf16(words[i]) : replayssm::cuda::unpack_half(words[i]);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = i < n ? load_one(base, dtype, index + i) : 0.0f;
  }
}

template <bool kPieces>
__device__ __forceinline__ void store_eight(const float x[8], void* base, DType dtype,
                                            int64_t index, int n) {
  if constexpr (kPieces) {
    if (dtype == DType::kF32) {
      float4* p = reinterpret_cast<float4*>(static_cast<float*>(base) + index);
      p[0] = make_float4(x[0], x[1], x[2], x[3]);
      p[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else {
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(base) + index) =
          make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                     pack_bf16(x[6], x[7]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < n) store_one(base, dtype, index + i, x[i]);
    }
  }
}

__device__ __forceinline__ float sigmoid(float x) { return __frcp_rn(1.0f + exp_fast(-x)); }
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

// 16 bytes that are read once and never written: they do not stay in the caches.
__device__ __forceinline__ uint4 stream_16(const void* p) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p));
  return x;
}

// The same value in every lane, by a fixed tree.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}
// The same value in every thread of a block of kWarps: a fixed tree over lanes, then the warps in
// order. work: kWarps elements.
template <int kWarps>
__device__ __forceinline__ float block_sum(float x, float* work) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) work[threadIdx.x / 32] = x;
  __syncthreads();
  float total = work[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) total += work[w];
  return total;
}

// n(x)'s factor, and the weight as it multiplies.
__device__ __forceinline__ float inverse_rms(float sum_of_squares, int64_t n, float eps) {
  return __fdiv_rn(1.0f,
                   __fsqrt_rn(__fadd_rn(__fdiv_rn(sum_of_squares, static_cast<float>(n)), eps)));
}
__device__ __forceinline__ float weight_at(const float* weight, bool zero_centred, int64_t i) {
  if (weight == nullptr) return 1.0f;
  return zero_centred ? 1.0f + weight[i] : weight[i];
}

template <bool kPieces>
__device__ __forceinline__ void weights_at(float w[8], const float* weight, bool zero_centred,
                                           int64_t index, int n) {
  if (weight == nullptr) {
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = 1.0f;
    return;
  }
  load_eight<kPieces>(w, weight, DType::kF32, index, n);
  if (!zero_centred) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) w[i] = 1.0f + w[i];
}
inline bool in_pieces(const float* weight) { return reinterpret_cast<uintptr_t>(weight) % 16 == 0; }

inline unsigned blocks_for(int64_t n, int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}

}  // namespace replayssm::ops::cuda
