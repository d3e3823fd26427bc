// FP8 weights: the quantisation of x, and the kernel for one row.
#include <cuda_fp8.h>

#include "ops/cuda/device.cuh"
#include "ops/cuda/linear_fp8_cuda.h"

namespace replayssm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr float kLargest = 448.0f;  // of E4M3

// What multiplies before rounding to E4M3, and what undoes it.
__device__ __forceinline__ float quantiser(float most) {
  return most > 0.0f ? __fdiv_rn(kLargest, most) : 1.0f;
}

__device__ __forceinline__ uint2 to_e4m3(const float x[8], float factor) {
  uint32_t out[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 pair = make_float2(x[4 * i + 2 * j] * factor, x[4 * i + 2 * j + 1] * factor);
      word |= uint32_t{__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3)} << (16 * j);
    }
    out[i] = word;
  }
  return make_uint2(out[0], out[1]);
}

struct QuantiseArgs {
  const __nv_bfloat16* x;
  int64_t stride, n_in;
  int64_t rows;  // of x; further ones, up to the grid's, are zeros
  Quantised out;
};

// One scale a row: a block a row.
__global__ void __launch_bounds__(kThreads)
    quantise_rows_kernel(const __grid_constant__ QuantiseArgs args) {
  __shared__ float work[kWarps];
  const int64_t row = blockIdx.x;
  const bool there = row < args.rows;
  float most = 0.0f;
  for (int64_t d = threadIdx.x * kEight; there && d < args.n_in; d += kThreads * kEight) {
    float x[8];
    load_eight<true>(x, args.x, DType::kBF16, row * args.stride + d, 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) most = replayssm::cuda::max_nan(most, fabsf(x[i]));
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    most = replayssm::cuda::max_nan(most, __shfl_xor_sync(~0u, most, offset));
  }
  if (threadIdx.x % 32 == 0) work[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = replayssm::cuda::max_nan(most, work[w]);
  const float factor = quantiser(most);
  for (int64_t d = threadIdx.x * kEight; d < args.n_in; d += kThreads * kEight) {
    float x[8] = {};
    if (there) load_eight<true>(x, args.x, DType::kBF16, row * args.stride + d, 8);
    *reinterpret_cast<uint2*>(args.out.data + row * args.n_in + d) = to_e4m3(x, factor);
  }
  if (threadIdx.x == 0) args.out.scales[row] = __fdiv_rn(1.0f, factor);
}

// One scale a row and 128 columns: sixteen lanes a block. Scales are [columns / 128][rows].
__global__ void __launch_bounds__(kThreads)
    quantise_blocks_kernel(const __grid_constant__ QuantiseArgs args) {
  const int64_t blocks = (args.n_in + kFp8Block - 1) / kFp8Block;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 16;
  const int64_t row = i / blocks, block = i % blocks;
  const int64_t d = block * kFp8Block + threadIdx.x % 16 * kEight;
  const bool there = row < args.rows && d < args.n_in;
  float x[8] = {};
  if (there) load_eight<true>(x, args.x, DType::kBF16, row * args.stride + d, 8);
  float most = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; ++j) most = replayssm::cuda::max_nan(most, fabsf(x[j]));
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) {
    most = replayssm::cuda::max_nan(most, __shfl_xor_sync(~0u, most, offset));
  }
  if (row >= args.out.rows) return;
  const float factor = quantiser(most);
  if (d < args.n_in) {
    *reinterpret_cast<uint2*>(args.out.data + row * args.n_in + d) = to_e4m3(x, factor);
  }
  if (threadIdx.x % 16 == 0) {
    args.out.scales[block * args.out.rows + row] = __fdiv_rn(1.0f, factor);
  }
}

__device__ __forceinline__ float2 from_e4m3(uint32_t two) {
  const __half2_raw h =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3);
  return __half22float2(*reinterpret_cast<const __half2*>(&h));
}

__device__ __forceinline__ float dot_16(uint4 w, uint4 x) {
  const uint32_t a[4] = {w.x, w.y, w.z, w.w}, b[4] = {x.x, x.y, x.z, x.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 p = from_e4m3(a[i] >> (16 * j) & 0xffffu);
      const float2 q = from_e4m3(b[i] >> (16 * j) & 0xffffu);
      sum = __fmaf_rn(p.x, q.x, sum);
      sum = __fmaf_rn(p.y, q.y, sum);
    }
  }
  return sum;
}

struct RowArgs {
  const uint8_t* weight;
  const float* scales;
  int64_t scale_stride;  // of a block of outputs; blocks only
  bool blocks;
  int64_t n_out, n_in;
  Quantised x;
  void* y;
  DType y_dtype;
  bool accumulate;
};

// A warp an output, sixteen elements a lane at a time: eight lanes a block.
__global__ void __launch_bounds__(kThreads) one_row_kernel(const __grid_constant__ RowArgs args) {
  const int64_t out = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (out >= args.n_out) return;
  const int lane = threadIdx.x % 32;
  const uint8_t* const weight = args.weight + out * args.n_in;
  const float* const scales = args.scales + out / kFp8Block * args.scale_stride;
  float sum = 0.0f;
#pragma unroll 4
  for (int64_t i = lane * 16; i < args.n_in; i += 32 * 16) {
    const float part = dot_16(*reinterpret_cast<const uint4*>(weight + i),
                              *reinterpret_cast<const uint4*>(args.x.data + i));
    const int64_t block = i / kFp8Block;
    const float scale = args.blocks ? scales[block] * args.x.scales[block * args.x.rows] : 1.0f;
    sum = __fmaf_rn(part, scale, sum);
  }
  sum = warp_sum(sum);
  if (lane != 0) return;
  if (!args.blocks) sum *= args.scales[out] * args.x.scales[0];
  if (args.accumulate) sum = static_cast<float*>(args.y)[out] + sum;
  store_one(args.y, args.y_dtype, out, sum);
}

}  // namespace

void quantise(const CudaContext& context, WeightType type, ConstMatrix x, const Quantised& out) {
  const QuantiseArgs args{static_cast<const __nv_bfloat16*>(x.data), x.stride, x.cols, x.rows, out};
  if (type == WeightType::kFp8Row) {
    quantise_rows_kernel<<<static_cast<unsigned>(out.rows), kThreads, 0, context.stream()>>>(args);
  } else {
    const int64_t blocks = (x.cols + kFp8Block - 1) / kFp8Block;
    quantise_blocks_kernel<<<blocks_for(out.rows * blocks * 16, kThreads), kThreads, 0,
                             context.stream()>>>(args);
  }
  check_launch("linear");
}

void linear_fp8_one_row(const CudaContext& context, const LinearCuda& weight, const Quantised& x,
                        Matrix y, bool accumulate) {
  const RowArgs args{static_cast<const uint8_t*>(weight.weight),
                     weight.scales,
                     fp8_scale_stride(weight.n_in),
                     weight.type == WeightType::kFp8Block,
                     weight.n_out,
                     weight.n_in,
                     x,
                     y.data,
                     y.dtype,
                     accumulate};
  one_row_kernel<<<blocks_for(weight.n_out, kWarps), kThreads, 0, context.stream()>>>(args);
  check_launch("linear");
}

}  // namespace replayssm::ops::cuda
