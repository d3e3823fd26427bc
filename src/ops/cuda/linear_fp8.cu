// FP8 weights: the kernel for one row.
#include <cuda_fp8.h>

#include "ops/cuda/device.cuh"
#include "ops/cuda/linear_fp8_cuda.h"

namespace replayssm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
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

// One warp per output, sixteen elements per lane at a time: eight lanes per block of scales.
__global__ void __launch_bounds__(kThreads) one_row_kernel(const __grid_constant__ RowArgs args) {
  start_in_turn();
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
  launch_in_turn(context, "linear", one_row_kernel, blocks_for(weight.n_out, kWarps), kThreads, 0,
                 args);
}

}  // namespace replayssm::ops::cuda
