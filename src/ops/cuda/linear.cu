#include "ops/cuda/device.cuh"
#include "ops/cuda/linear_kernels_cuda.h"

namespace replayssm::ops::cuda {
namespace {

struct Args {
  const void* weight;
  DType weight_dtype;
  int64_t n_out, n_in;
  const void* x;
  DType x_dtype;
  int64_t x_stride;
  void* y;
  DType y_dtype;
  int64_t y_stride;
  int64_t rows;
  bool accumulate;
};

Args args_of(const LinearCuda& weight, ConstMatrix x, Matrix y, bool accumulate) {
  return {weight.weight, weight.type == WeightType::kF32 ? DType::kF32 : DType::kBF16,
          weight.n_out,  weight.n_in,
          x.data,        x.dtype,
          x.stride,      y.data,
          y.dtype,       y.stride,
          y.rows,        accumulate};
}

__device__ __forceinline__ void put(const Args& args, int64_t row, int64_t out, float sum) {
  const int64_t at = row * args.y_stride + out;
  if (args.accumulate) sum = static_cast<float*>(args.y)[at] + sum;
  store_one(args.y, args.y_dtype, at, sum);
}

constexpr int kRowThreads = 256;
constexpr int kStride = 32 * 8;  // elements that a warp handles at once

// Read once: does not stay in the caches.
__device__ __forceinline__ uint4 stream_16(const void* p) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p));
  return x;
}

__device__ __forceinline__ void add_products(float& sum, uint4 w, uint4 x) {
  const uint32_t a[4] = {w.x, w.y, w.z, w.w}, b[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 p = unpack_bf16(a[i]), q = unpack_bf16(b[i]);
    sum = __fmaf_rn(p.x, q.x, sum);
    sum = __fmaf_rn(p.y, q.y, sum);
  }
}

__global__ void __launch_bounds__(kRowThreads) one_row_kernel(const __grid_constant__ Args args) {
  constexpr int kAhead = 4;  // loads in flight per lane
  const int64_t out = int64_t{blockIdx.x} * (kRowThreads / 32) + threadIdx.x / 32;
  if (out >= args.n_out) return;
  const int lane = threadIdx.x % 32;
  const auto* const weight = static_cast<const __nv_bfloat16*>(args.weight) + out * args.n_in;
  const auto* const x = static_cast<const __nv_bfloat16*>(args.x);
  float sum = 0.0f;
  int64_t i = lane * 8;
  for (; i + (kAhead - 1) * kStride < args.n_in; i += kAhead * kStride) {
    uint4 w[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) w[j] = stream_16(weight + i + j * kStride);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      add_products(sum, w[j], *reinterpret_cast<const uint4*>(x + i + j * kStride));
    }
  }
  for (; i < args.n_in; i += kStride) {
    add_products(sum, stream_16(weight + i), *reinterpret_cast<const uint4*>(x + i));
  }
  sum = warp_sum(sum);
  if (lane == 0) put(args, 0, out, sum);
}

constexpr int kTile = 16;

__global__ void __launch_bounds__(kTile* kTile) plain_kernel(const __grid_constant__ Args args) {
  __shared__ float w[kTile][kTile + 1], x[kTile][kTile + 1];
  const int tx = threadIdx.x % kTile, ty = threadIdx.x / kTile;
  const int64_t out = int64_t{blockIdx.x} * kTile + tx, row = int64_t{blockIdx.y} * kTile + ty;
  const int64_t load_out = int64_t{blockIdx.x} * kTile + ty;
  float sum = 0.0f;
  for (int64_t first = 0; first < args.n_in; first += kTile) {
    const int64_t i = first + tx;
    const bool inside = i < args.n_in;
    w[ty][tx] = inside && load_out < args.n_out
                    ? load_one(args.weight, args.weight_dtype, load_out * args.n_in + i)
                    : 0.0f;
    x[ty][tx] =
        inside && row < args.rows ? load_one(args.x, args.x_dtype, row * args.x_stride + i) : 0.0f;
    __syncthreads();
    const int n = static_cast<int>(min(int64_t{kTile}, args.n_in - first));
    for (int j = 0; j < n; ++j) sum = __fmaf_rn(w[tx][j], x[ty][j], sum);
    __syncthreads();
  }
  if (out < args.n_out && row < args.rows) put(args, row, out, sum);
}

}  // namespace

void linear_one_row(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
                    bool accumulate) {
  one_row_kernel<<<blocks_for(weight.n_out, kRowThreads / 32), kRowThreads, 0, context.stream()>>>(
      args_of(weight, x, y, accumulate));
  check_launch("linear");
}

void linear_plain(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
                  bool accumulate) {
  constexpr int64_t kMaxRows = int64_t{65535} * kTile;  // of a grid's second dimension
  REPLAYSSM_CHECK(y.rows <= kMaxRows, y.rows, " rows");
  const dim3 grid(blocks_for(weight.n_out, kTile), blocks_for(y.rows, kTile));
  plain_kernel<<<grid, kTile * kTile, 0, context.stream()>>>(args_of(weight, x, y, accumulate));
  check_launch("linear");
}

}  // namespace replayssm::ops::cuda
