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

// One row. A block owns a run of outputs, so of the weights, which its warps share in units of
// kUnit inputs, round robin. A unit's sum goes to shared memory; a thread then adds those of an
// output in order. So the bits depend on n_in alone. Loads of kAhead units are in flight for every
// warp, from the first to the last, and the first ones start while the kernels ahead make x.
constexpr int kRowWarps = 16;
constexpr int kRowThreads = 32 * kRowWarps;
constexpr int kUnit = 512;  // elements: 16 for each lane
constexpr int kAhead = 4;
constexpr int kBlocksPerSm = 2;  // all that fit: 128 KB are on their way to an SM at once
constexpr int kSums = 4096;      // units between two barriers

__device__ __forceinline__ void add_products(float& sum, uint4 w, uint4 x) {
  const uint32_t a[4] = {w.x, w.y, w.z, w.w}, b[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 p = unpack_bf16(a[i]), q = unpack_bf16(b[i]);
    sum = __fmaf_rn(p.x, q.x, sum);
    sum = __fmaf_rn(p.y, q.y, sum);
  }
}

// Goes through the units of a block that are one warp's.
struct UnitCursor {
  int row, unit;

  __device__ void next(int n_units) {
    unit += kRowWarps;
    while (unit >= n_units) {
      unit -= n_units;
      ++row;
    }
  }
};

// Shared memory: x, with zeros up to a whole unit.
__global__ void __launch_bounds__(kRowThreads, kBlocksPerSm)
    one_row_kernel(const __grid_constant__ Args args, int n_units) {
  extern __shared__ uint4 x_shared[];
  __shared__ float sums[2][kSums];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = args.n_out * blockIdx.x / gridDim.x;
  const int n_rows = static_cast<int>(args.n_out * (blockIdx.x + 1) / gridDim.x - first);
  const auto* const weight = static_cast<const __nv_bfloat16*>(args.weight) + first * args.n_in;

  UnitCursor ahead{0, warp - kRowWarps};
  ahead.next(n_units);
  UnitCursor at = ahead;
  uint4 w[kAhead][2];
  const auto fetch = [&](uint4(&to)[2]) {
    const int i = ahead.unit * kUnit + lane * 8;
    const __nv_bfloat16* const from = weight + ahead.row * args.n_in + i;
    to[0] = to[1] = make_uint4(0, 0, 0, 0);
    if (ahead.row < n_rows && i < args.n_in) to[0] = stream_16(from);
    if (ahead.row < n_rows && i + kUnit / 2 < args.n_in) to[1] = stream_16(from + kUnit / 2);
    ahead.next(n_units);
  };
#pragma unroll
  for (int j = 0; j < kAhead; ++j) fetch(w[j]);
  wait_for_kernels_ahead();
  const auto* const x = static_cast<const uint4*>(args.x);
  for (int i = static_cast<int>(threadIdx.x); i < n_units * kUnit / 8; i += kRowThreads) {
    x_shared[i] = i * 8 < args.n_in ? x[i] : make_uint4(0, 0, 0, 0);
  }
  __syncthreads();

  // A multiple of 64, so that a warp's share of the units is one of kAhead.
  const int together = kSums / n_units / 64 * 64;
  for (int begin = 0, turn = 0; begin < n_rows; begin += together, turn ^= 1) {
    const int end = min(begin + together, n_rows);
    while (at.row < end) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const uint4* const mine = x_shared + at.unit * (kUnit / 8) + lane;
        float sum = 0.0f;
        add_products(sum, w[j][0], mine[0]);
        add_products(sum, w[j][1], mine[kUnit / 16]);
        fetch(w[j]);
        sum = warp_sum(sum);
        if (lane == 0 && at.row < end) sums[turn][(at.row - begin) * n_units + at.unit] = sum;
        at.next(n_units);
      }
    }
    __syncthreads();
    // Not before: blocks of the next kernel would take the places that some SMs have left.
    if (end == n_rows) let_next_kernel_start();
    for (int row = begin + static_cast<int>(threadIdx.x); row < end; row += kRowThreads) {
      const float* const of_row = sums[turn] + (row - begin) * n_units;
      float total = of_row[0];
      for (int unit = 1; unit < n_units; ++unit) total += of_row[unit];
      put(args, 0, first + row, total);
    }
  }
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

bool takes_one_row(const LinearCuda& weight) { return weight.n_in <= kSums / 64 * kUnit; }

void linear_one_row(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
                    bool accumulate) {
  const auto n_units = static_cast<int>((weight.n_in + kUnit - 1) / kUnit);
  const size_t bytes = static_cast<size_t>(n_units) * kUnit * 2;
  cudaFuncSetAttribute(one_row_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kSums / 64 * kUnit * 2);
  const int64_t places = int64_t{kBlocksPerSm} * context.n_sms();
  const auto blocks = static_cast<unsigned>(std::min(weight.n_out, places));
  launch_in_turn(context, "linear", one_row_kernel, blocks, kRowThreads, bytes,
                 args_of(weight, x, y, accumulate), n_units);
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
