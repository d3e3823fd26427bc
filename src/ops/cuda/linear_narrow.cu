// linear() of few outputs and rows, bf16 weights, on the tensor cores: bound by latency.
//
// A block computes 16 outputs for 8 rows. Outputs are the rows of the mma, rows of x its columns.
// Both operands are loaded from global memory as they are, 16 bytes per lane: lane 4 g + c holds
// bytes [16 c, 16 c + 16) of 64 of row g. These are not the inputs that the mma's layout names, but
// they are the same ones in both operands, so the sum is the same.
//
// The block's warps share n_in, 128 bytes at a time, round robin; their sums are added in the order
// of the warps. So a row's bits do not depend on the other rows.
#include "ops/cuda/device.cuh"
#include "ops/cuda/linear_kernels_cuda.h"

namespace replayssm::ops::cuda {
namespace {

using replayssm::cuda::mma_bf16;

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int64_t kChunk = 64;         // bytes of a row that a warp loads at once
constexpr int64_t kTurn = 2 * kChunk;  // and that it handles before the next warp's begin
constexpr int64_t kRound = kWarps * kTurn;
constexpr unsigned kMaxBlocks = 176;     // with more, cuBLASLt is faster
constexpr int kAhead = 2;                // turns in flight
constexpr int kOutputs = 16, kRows = 8;  // of a block

struct Args {
  const uint8_t* weight;
  int64_t n_out, row_bytes;  // of weight and x alike
  const uint8_t* x;
  int64_t x_stride;  // bytes
  int64_t rows;
  void* y;
  DType y_dtype;
  int64_t y_stride;
  bool accumulate;
};

// What a lane holds of 128 bytes of two weights and a row of x.
struct Turn {
  uint4 upper[2], lower[2], x[2];
};

__global__ void __launch_bounds__(kThreads) narrow_kernel(const __grid_constant__ Args args) {
  __shared__ float part[kWarps][kRows][kOutputs + 1];
  let_next_kernel_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, c = lane % 4;
  const int64_t output = int64_t{blockIdx.x} * kOutputs, row = int64_t{blockIdx.y} * kRows;
  // Outputs and rows past the end repeat the last one; their results are not stored.
  const uint8_t* const upper =
      args.weight + min(output + g, args.n_out - 1) * args.row_bytes + c * 16;
  const uint8_t* const lower =
      args.weight + min(output + g + 8, args.n_out - 1) * args.row_bytes + c * 16;
  const uint8_t* const x = args.x + min(row + g, args.rows - 1) * args.x_stride + c * 16;
  // A row may end within a turn, after 64 bytes.
  const auto fetch_weights = [&](Turn& to, int64_t at) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      to.upper[j] = to.lower[j] = make_uint4(0, 0, 0, 0);
      if (at + j * kChunk >= args.row_bytes) continue;
      to.upper[j] = stream_16(upper + at + j * kChunk);
      to.lower[j] = stream_16(lower + at + j * kChunk);
    }
  };
  const auto fetch_x = [&](Turn& to, int64_t at) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      to.x[j] = make_uint4(0, 0, 0, 0);
      if (at + j * kChunk >= args.row_bytes) continue;
      to.x[j] = *reinterpret_cast<const uint4*>(x + at + j * kChunk);
    }
  };
  const int64_t begin = warp * kTurn;
  Turn turn[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch_weights(turn[i], begin + i * kRound);
  wait_for_kernels_ahead();
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch_x(turn[i], begin + i * kRound);

  float sum[4] = {};
  for (int64_t at = begin; at < args.row_bytes; at += kAhead * kRound) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      Turn& t = turn[i];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 u = t.upper[j], v = t.lower[j], b = t.x[j];
        mma_bf16(sum, u.x, v.x, u.y, v.y, b.x, b.y);
        mma_bf16(sum, u.z, v.z, u.w, v.w, b.z, b.w);
      }
      fetch_weights(t, at + (i + kAhead) * kRound);
      fetch_x(t, at + (i + kAhead) * kRound);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) part[warp][2 * c + i % 2][g + 8 * (i / 2)] = sum[i];
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x) / kOutputs;
  const int o = static_cast<int>(threadIdx.x) % kOutputs;
  if (r >= kRows || row + r >= args.rows || output + o >= args.n_out) return;
  float total = part[0][r][o];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) total += part[w][r][o];
  const int64_t to = (row + r) * args.y_stride + output + o;
  if (args.accumulate) total = static_cast<float*>(args.y)[to] + total;
  store_one(args.y, args.y_dtype, to, total);
}

}  // namespace

bool takes_narrow(const LinearCuda& weight, int64_t rows) {
  return blocks_for(weight.n_out, kOutputs) * blocks_for(rows, kRows) <= kMaxBlocks &&
         weight.type == WeightType::kBF16 && weight.n_in % (kChunk / 2) == 0;
}

void linear_narrow(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
                   bool accumulate) {
  const Args args{static_cast<const uint8_t*>(weight.weight),
                  weight.n_out,
                  weight.n_in * 2,
                  static_cast<const uint8_t*>(x.data),
                  x.stride * 2,
                  y.rows,
                  y.data,
                  y.dtype,
                  y.stride,
                  accumulate};
  const dim3 grid(blocks_for(args.n_out, kOutputs), blocks_for(args.rows, kRows));
  launch_in_turn(context, "linear", narrow_kernel, grid, kThreads, 0, args);
}

}  // namespace replayssm::ops::cuda
