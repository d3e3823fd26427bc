// expert_linear() for bf16 weights: one linear layer of all experts in one kernel, on the tensor
// cores.
//
// A warp computes 16 outputs of one expert for up to 32 of its rows, over all of n_in. Outputs are
// the rows of the mma, rows of x its columns. Both operands are loaded from global memory as they
// are, 16 bytes per lane: lane 4 g + c holds bytes [16 c, 16 c + 16) of 64 of row g. These are not
// the inputs that the mma's layout names, but they are the same ones in both operands, so the sum
// is the same.
#include "ops/cuda/device.cuh"
#include "ops/cuda/moe_cuda.h"

namespace replayssm::ops::cuda {
namespace {

using replayssm::cuda::mma_bf16;

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kOutputs = 16;  // per warp

struct Args {
  const uint8_t* weight;
  int64_t n_out, row_bytes;  // of weight and x alike
  const int32_t* first;
  const uint8_t* x;
  int64_t x_stride;  // bytes
  void* y;
  DType y_dtype;
  int64_t y_stride;
};

// Rows [first, first + n) of x, n <= 8 kN.
template <int kN>
__device__ void run(const Args& args, int64_t expert, int64_t output, int64_t first, int n) {
  constexpr int kAhead = 4;  // of 64 bytes each
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
  const uint8_t* const a =
      args.weight + (expert * args.n_out + output + g) * args.row_bytes + c * 16;
  const uint8_t* const b = a + 8 * args.row_bytes;
  const uint8_t* x[kN];
#pragma unroll
  for (int t = 0; t < kN; ++t) {
    // Rows past the end repeat the last one; their results are not stored.
    x[t] = args.x + (first + min(8 * t + g, n - 1)) * args.x_stride + c * 16;
  }
  float sum[kN][4] = {};
  const auto step = [&](uint4 u, uint4 v, const uint4 w[kN]) {
#pragma unroll
    for (int t = 0; t < kN; ++t) {
      mma_bf16(sum[t], u.x, v.x, u.y, v.y, w[t].x, w[t].y);
      mma_bf16(sum[t], u.z, v.z, u.w, v.w, w[t].z, w[t].w);
    }
  };
  int64_t at = 0;
  for (; at + kAhead * 64 <= args.row_bytes; at += kAhead * 64) {
    uint4 u[kAhead], v[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      u[j] = *reinterpret_cast<const uint4*>(a + at + 64 * j);
      v[j] = *reinterpret_cast<const uint4*>(b + at + 64 * j);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      uint4 w[kN];
#pragma unroll
      for (int t = 0; t < kN; ++t) w[t] = *reinterpret_cast<const uint4*>(x[t] + at + 64 * j);
      step(u[j], v[j], w);
    }
  }
  for (; at < args.row_bytes; at += 64) {
    uint4 w[kN];
#pragma unroll
    for (int t = 0; t < kN; ++t) w[t] = *reinterpret_cast<const uint4*>(x[t] + at);
    step(*reinterpret_cast<const uint4*>(a + at), *reinterpret_cast<const uint4*>(b + at), w);
  }
#pragma unroll
  for (int t = 0; t < kN; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = 8 * t + 2 * c + i % 2;
      if (r >= n) continue;
      const int64_t o = output + g + 8 * (i / 2);
      store_one(args.y, args.y_dtype, (first + r) * args.y_stride + o, sum[t][i]);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 4) experts_kernel(const __grid_constant__ Args args) {
  start_in_turn();
  const int64_t expert = blockIdx.y;
  const int64_t output = (int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * kOutputs;
  if (output >= args.n_out) return;
  const int64_t end = args.first[expert + 1];
  for (int64_t at = args.first[expert]; at < end; at += 32) {
    const int n = static_cast<int>(min(int64_t{32}, end - at));
    if (n <= 8) {
      run<1>(args, expert, output, at, n);
    } else if (n <= 16) {
      run<2>(args, expert, output, at, n);
    } else {
      run<4>(args, expert, output, at, n);
    }
  }
}

}  // namespace

void expert_linear(const CudaContext& context, const ExpertsCuda& experts, const int32_t* first,
                   ConstMatrix x, Matrix y) {
  const LinearCuda& w = experts.stack;
  REPLAYSSM_CHECK(x.rows == y.rows && x.cols == w.n_in && y.cols == w.n_out, "x ", x.rows, " x ",
                  x.cols, ", y ", y.rows, " x ", y.cols, ", weight ", w.n_out, " x ", w.n_in);
  REPLAYSSM_CHECK(w.type == WeightType::kBF16 && w.n_in % 32 == 0 && w.n_out % kOutputs == 0,
                  "experts of ", w.n_out, " x ", w.n_in);
  REPLAYSSM_CHECK(x.dtype == DType::kBF16 && in_pieces(x) && is_activation(y.dtype),
                  dtype_name(x.dtype), " to ", dtype_name(y.dtype),
                  ", or rows that are not aligned");
  REPLAYSSM_CHECK(experts.n_experts <= kMaxExperts, experts.n_experts, " experts");
  if (y.rows == 0) return;
  Args args = {};
  args.weight = static_cast<const uint8_t*>(w.weight);
  args.n_out = w.n_out;
  args.row_bytes = weight_bytes(w.type, 1, w.n_in);
  args.first = first;
  args.x = static_cast<const uint8_t*>(x.data);
  args.x_stride = x.stride * 2;
  args.y = y.data;
  args.y_dtype = y.dtype;
  args.y_stride = y.stride;
  const dim3 grid(blocks_for(w.n_out, kOutputs * kWarps), static_cast<unsigned>(experts.n_experts));
  launch_in_turn(context, "expert_linear", experts_kernel, grid, kThreads, 0, args);
}

}  // namespace replayssm::ops::cuda
