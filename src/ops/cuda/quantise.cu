#include <cuda_fp8.h>

#include "ops/cuda/device.cuh"
#include "ops/cuda/quantise_cuda.h"

namespace replayssm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr float kLargest = 448.0f;  // of E4M3

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
__device__ __forceinline__ void load(float x[8], const Args& args, int64_t row, int64_t d) {
  load_eight<true>(x, args.x, DType::kBF16, row * args.x_stride + d, 8);
  if constexpr (kOf == Of::kRow) return;
  float up[8] = {};
  if constexpr (kOf == Of::kSiluMul) {
    load_eight<true>(up, args.up, DType::kBF16, row * args.up_stride + d, 8);
  }
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
#pragma unroll
    for (int j = i; j < i + 2; ++j) {
      x[j] = kOf == Of::kSiluMul ? silu(x[j]) * up[j]
                                 : (x[j] > 0.0f || x[j] != x[j] ? x[j] * x[j] : 0.0f);
    }
    const float2 rounded = unpack_bf16(pack_bf16(x[i], x[i + 1]));
    x[i] = rounded.x, x[i + 1] = rounded.y;
  }
}

__device__ __forceinline__ float most_of(const float x[8]) {
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) most = max_nan(most, fabsf(x[i]));
  return most;
}

template <typename Body>
__device__ __forceinline__ void for_targets(const Args& args, int64_t row, const Body& body) {
  if (args.row == nullptr) {
    body(row);
  } else {
    for (int32_t i = 0; i < args.copies; ++i) body(int64_t{args.row[row * args.copies + i]});
  }
}

// One scale a row: a block a row.
template <Of kOf>
__global__ void __launch_bounds__(kThreads) rows_kernel(const __grid_constant__ Args args) {
  __shared__ float work[kWarps];
  const int64_t row = blockIdx.x;
  const bool there = row < args.rows;
  float most = 0.0f;
  for (int64_t d = threadIdx.x * kEight; there && d < args.n_in; d += kThreads * kEight) {
    float x[8];
    load<kOf>(x, args, row, d);
    most = max_nan(most, most_of(x));
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    most = max_nan(most, __shfl_xor_sync(~0u, most, offset));
  }
  if (threadIdx.x % 32 == 0) work[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = max_nan(most, work[w]);
  const float factor = quantiser(most);
  for (int64_t d = threadIdx.x * kEight; d < args.n_in; d += kThreads * kEight) {
    float x[8] = {};
    if (there) load<kOf>(x, args, row, d);
    const uint2 bytes = to_e4m3(x, factor);
    for_targets(args, row, [&](int64_t to) {
      *reinterpret_cast<uint2*>(args.out.data + to * args.n_in + d) = bytes;
    });
  }
  if (threadIdx.x != 0) return;
  for_targets(args, row, [&](int64_t to) { args.out.scales[to] = __fdiv_rn(1.0f, factor); });
}

// One scale a row and 128 columns: sixteen lanes a block of columns, of which there are n_blocks.
template <Of kOf>
__global__ void __launch_bounds__(kThreads)
    blocks_kernel(const __grid_constant__ Args args, int32_t n_blocks, int32_t n_rows) {
  const int32_t i = static_cast<int32_t>(blockIdx.x * (kThreads / 16) + threadIdx.x / 16);
  const int32_t row = i / n_blocks, block = i % n_blocks;
  const int64_t d = block * kFp8Block + threadIdx.x % 16 * kEight;
  const bool there = row < args.rows && d < args.n_in;
  float x[8] = {};
  if (there) load<kOf>(x, args, row, d);
  float most = most_of(x);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) {
    most = max_nan(most, __shfl_xor_sync(~0u, most, offset));
  }
  if (row >= n_rows) return;
  const float factor = quantiser(most);
  const uint2 bytes = to_e4m3(x, factor);
  for_targets(args, row, [&](int64_t to) {
    if (d < args.n_in) *reinterpret_cast<uint2*>(args.out.data + to * args.n_in + d) = bytes;
    if (threadIdx.x % 16 == 0) {
      args.out.scales[block * args.out.rows + to] = __fdiv_rn(1.0f, factor);
    }
  });
}

// n_rows: of x, or up to out's, the rest zeros.
template <Of kOf>
void launch(const CudaContext& context, WeightType type, const Args& args, int64_t n_rows) {
  if (n_rows == 0) return;
  REPLAYSSM_CHECK(type == WeightType::kFp8Row || type == WeightType::kFp8Block, "no FP8 weight");
  const int64_t blocks = (args.n_in + kFp8Block - 1) / kFp8Block;
  if (type == WeightType::kFp8Row) {
    rows_kernel<kOf><<<static_cast<unsigned>(n_rows), kThreads, 0, context.stream()>>>(args);
  } else {
    blocks_kernel<kOf>
        <<<blocks_for(n_rows * blocks * 16, kThreads), kThreads, 0, context.stream()>>>(
            args, static_cast<int32_t>(blocks), static_cast<int32_t>(n_rows));
  }
  check_launch("quantise");
}

Args args_of(ConstMatrix x, const Quantised& out) {
  REPLAYSSM_CHECK(x.dtype == DType::kBF16 && in_pieces(x), dtype_name(x.dtype),
                  ", or rows that are not aligned");
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
