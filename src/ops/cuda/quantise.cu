#include <cuda_fp8.h>

#include "ops/cuda/device.cuh"
#include "ops/cuda/quantise_cuda.h"

namespace replayssm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPiece = 16;                                    // elements of a thread at once
constexpr int kLanes = static_cast<int>(kFp8Block) / kPiece;  // of a block of columns
constexpr float kLargest = 448.0f;                            // of E4M3

// NaN if one is.
__device__ __forceinline__ float max_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// What multiplies before rounding to E4M3, and what undoes it.
__device__ __forceinline__ float quantiser(float most) {
  return most > 0.0f ? __fdiv_rn(kLargest, most) : 1.0f;
}

__device__ __forceinline__ uint4 to_e4m3(const float x[kPiece], float factor) {
  uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 pair = make_float2(x[4 * i + 2 * j] * factor, x[4 * i + 2 * j + 1] * factor);
      word |= uint32_t{__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3)} << (16 * j);
    }
    out[i] = word;
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}

enum class Of { kRow, kSiluMul, kRelu2 };

struct Args {
  const void *x, *up;  // bf16
  int64_t x_stride, up_stride;
  int64_t rows, n_in;
  const int32_t* row;  // row t goes to row[t * copies + i], or, if null, to t
  int32_t copies;
  Quantised out;
};

template <Of kOf>
__device__ __forceinline__ void load(float x[kPiece], const Args& args, int64_t row, int64_t d) {
  const int64_t x_at = row * args.x_stride + d, up_at = row * args.up_stride + d;
  load_eight<true>(x, args.x, DType::kBF16, x_at, 8);
  load_eight<true>(x + 8, args.x, DType::kBF16, x_at + 8, 8);
  if constexpr (kOf == Of::kRow) return;
  float up[kPiece] = {};
  if constexpr (kOf == Of::kSiluMul) {
    load_eight<true>(up, args.up, DType::kBF16, up_at, 8);
    load_eight<true>(up + 8, args.up, DType::kBF16, up_at + 8, 8);
  }
#pragma unroll
  for (int i = 0; i < kPiece; i += 2) {
#pragma unroll
    for (int j = i; j < i + 2; ++j) {
      x[j] = kOf == Of::kSiluMul ? silu(x[j]) * up[j]
                                 : (x[j] > 0.0f || x[j] != x[j] ? x[j] * x[j] : 0.0f);
    }
    const float2 rounded = unpack_bf16(pack_bf16(x[i], x[i + 1]));
    x[i] = rounded.x, x[i + 1] = rounded.y;
  }
}

__device__ __forceinline__ float most_of(const float x[kPiece]) {
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < kPiece; ++i) most = max_nan(most, fabsf(x[i]));
  return most;
}

template <int kWidth>
__device__ __forceinline__ float most_of_lanes(float most) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) {
    most = max_nan(most, __shfl_xor_sync(~0u, most, offset));
  }
  return most;
}

// kWidth lanes share a row. All lanes of a warp must call; `there`: the lane's row exists.
template <int kWidth, typename Body>
__device__ __forceinline__ void for_targets(const Args& args, int64_t row, bool there,
                                            const Body& body) {
  if (args.row == nullptr) {
    if (there) body(row);
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWidth;
  for (int32_t base = 0; base < args.copies; base += kWidth) {
    int32_t mine = 0;
    if (there && base + lane < args.copies) mine = args.row[row * args.copies + base + lane];
#pragma unroll 8
    for (int32_t i = 0; i < min(kWidth, args.copies - base); ++i) {
      const int32_t to = __shfl_sync(~0u, mine, i, kWidth);
      if (there) body(int64_t{to});
    }
  }
}

// One scale per row, one block per row. kOnce: every thread has at most one piece and loads it
// once.
template <Of kOf, bool kOnce>
__global__ void __launch_bounds__(kThreads) rows_kernel(const __grid_constant__ Args args) {
  __shared__ float work[kThreads / 32];
  start_in_turn();
  const int64_t row = blockIdx.x;
  const bool there = row < args.rows;
  const int64_t begin = int64_t{threadIdx.x} * kPiece, step = int64_t{blockDim.x} * kPiece;
  float x[kPiece] = {};
  float most = 0.0f;
  for (int64_t d = begin; there && d < args.n_in; d += step) {
    load<kOf>(x, args, row, d);
    most = max_nan(most, most_of(x));
    if (kOnce) break;
  }
  most = most_of_lanes<32>(most);
  if (threadIdx.x % 32 == 0) work[threadIdx.x / 32] = most;
  __syncthreads();
  for (unsigned w = 0; w < blockDim.x / 32; ++w) {
    most = max_nan(most, work[w]);
  }
  const float factor = quantiser(most);
  for (int64_t first = 0; first < args.n_in; first += step) {
    const int64_t d = first + begin;
    const bool mine = d < args.n_in;
    if (!kOnce && there && mine) load<kOf>(x, args, row, d);
    const uint4 bytes = to_e4m3(x, factor);
    for_targets<32>(args, row, true, [&](int64_t to) {
      if (mine) *reinterpret_cast<uint4*>(args.out.data + to * args.n_in + d) = bytes;
    });
  }
  if (threadIdx.x >= 32) return;
  for_targets<32>(args, row, true, [&](int64_t to) {
    if (threadIdx.x == 0) args.out.scales[to] = __fdiv_rn(1.0f, factor);
  });
}

// One scale per row and 128 columns: eight lanes per block of columns; n_blocks blocks in all.
template <Of kOf>
__global__ void __launch_bounds__(kThreads)
    blocks_kernel(const __grid_constant__ Args args, int32_t n_blocks, int32_t n_rows) {
  start_in_turn();
  const int32_t i = static_cast<int32_t>(blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes);
  const int32_t row = i / n_blocks, block = i % n_blocks;
  const int64_t d = block * kFp8Block + threadIdx.x % kLanes * kPiece;
  float x[kPiece] = {};
  if (row < args.rows && d < args.n_in) load<kOf>(x, args, row, d);
  const float factor = quantiser(most_of_lanes<kLanes>(most_of(x)));
  const float scale = __fdiv_rn(1.0f, factor);
  const uint4 bytes = to_e4m3(x, factor);
  for_targets<kLanes>(args, row, row < n_rows, [&](int64_t to) {
    if (d < args.n_in) *reinterpret_cast<uint4*>(args.out.data + to * args.n_in + d) = bytes;
    if (threadIdx.x % kLanes == 0) args.out.scales[block * args.out.rows + to] = scale;
  });
}

// n_rows: of x, or up to out's, the rest zeros.
template <Of kOf>
void launch(const CudaContext& context, WeightType type, const Args& args, int64_t n_rows) {
  if (n_rows == 0) return;
  REPLAYSSM_CHECK(type == WeightType::kFp8Row || type == WeightType::kFp8Block, "no FP8 weight");
  const int64_t blocks = (args.n_in + kFp8Block - 1) / kFp8Block;
  if (type == WeightType::kFp8Row) {
    const int64_t threads = (args.n_in + 32 * kPiece - 1) / (32 * kPiece) * 32;
    auto* const kernel = threads <= kThreads ? rows_kernel<kOf, true> : rows_kernel<kOf, false>;
    launch_in_turn(context, "quantise", kernel, static_cast<unsigned>(n_rows),
                   static_cast<int>(std::min<int64_t>(threads, kThreads)), 0, args);
  } else {
    launch_in_turn(context, "quantise", blocks_kernel<kOf>,
                   blocks_for(n_rows * blocks * kLanes, kThreads), kThreads, 0, args,
                   static_cast<int32_t>(blocks), static_cast<int32_t>(n_rows));
  }
}

Args args_of(ConstMatrix x, const Quantised& out) {
  REPLAYSSM_CHECK(x.dtype == DType::kBF16 && in_pieces(x) && x.cols % kPiece == 0,
                  dtype_name(x.dtype), ", or rows that are not aligned");
  return {x.data, nullptr, x.stride, 0, x.rows, x.cols, nullptr, 1, out};
}

}  // namespace

int64_t quantised_bytes(int64_t rows, int64_t n_in) {
  const int64_t padded = (rows + 3) / 4 * 4;
  return (padded * n_in + 255) / 256 * 256 + padded * fp8_scale_stride(n_in) * 4;
}

Quantised quantised_at(void* memory, int64_t rows, int64_t n_in) {
  const int64_t padded = (rows + 3) / 4 * 4;
  auto* const data = static_cast<uint8_t*>(memory);
  return {data, reinterpret_cast<float*>(data + (padded * n_in + 255) / 256 * 256), padded};
}

void quantise(const CudaContext& context, WeightType type, ConstMatrix x, const Quantised& out) {
  launch<Of::kRow>(context, type, args_of(x, out), out.rows);
}

void quantise_silu_mul(const CudaContext& context, WeightType type, ConstMatrix gate,
                       ConstMatrix up, const Quantised& out) {
  Args args = args_of(gate, out);
  REPLAYSSM_CHECK(
      up.rows == gate.rows && up.cols == gate.cols && up.dtype == DType::kBF16 && in_pieces(up),
      "gate ", gate.rows, " x ", gate.cols, ", up ", up.rows, " x ", up.cols);
  args.up = up.data;
  args.up_stride = up.stride;
  launch<Of::kSiluMul>(context, type, args, out.rows);
}

void quantise_relu2(const CudaContext& context, WeightType type, ConstMatrix x,
                    const Quantised& out) {
  launch<Of::kRelu2>(context, type, args_of(x, out), out.rows);
}

void quantise_spread(const CudaContext& context, WeightType type, ConstMatrix x, const int32_t* row,
                     int32_t top_k, const Quantised& out) {
  Args args = args_of(x, out);
  args.row = row;
  args.copies = top_k;
  launch<Of::kRow>(context, type, args, x.rows);
}

}  // namespace replayssm::ops::cuda
