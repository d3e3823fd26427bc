// expert_linear(): a layer of all experts in one kernel, on the tensor cores.
//
// A warp takes 16 outputs of one expert and up to 32 of its rows over the whole of n_in. Outputs
// stand in the rows of the products, x's rows in their columns. Both operands come from memory in
// the lanes' 16-byte pieces as they stand: lane 4 g + c holds bytes [16 c, 16 c + 16) of 64 of row
// g, which makes it hold other inputs than the instruction's table says, but the same ones of both.
#include "ops/cuda/device.cuh"
#include "ops/cuda/linear_fp8_cuda.h"
#include "ops/cuda/moe_cuda.h"

namespace replayssm::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kOutputs = 16;  // a warp

struct Args {
  const uint8_t* weight;
  const float* scales;
  int64_t scales_an_expert, scale_stride;
  int64_t n_out, row_bytes;  // of weight and x alike
  const int32_t* first;
  const uint8_t* x;
  int64_t x_stride;  // bytes
  const float* x_scales;
  int64_t x_rows;
  void* y;
  DType y_dtype;
  int64_t y_stride;
};

// D += A B, E4M3 operands, [16 x 32] by [32 x 8].
__device__ __forceinline__ void mma_e4m3(float d[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <bool kFp8>
__device__ __forceinline__ void multiply(float d[4], uint4 a, uint4 b, uint4 x) {
  if constexpr (kFp8) {
    mma_e4m3(d, a.x, b.x, a.y, b.y, x.x, x.y);
    mma_e4m3(d, a.z, b.z, a.w, b.w, x.z, x.w);
  } else {
    replayssm::cuda::mma_bf16(d, a.x, b.x, a.y, b.y, x.x, x.y);
    replayssm::cuda::mma_bf16(d, a.z, b.z, a.w, b.w, x.z, x.w);
  }
}

// Rows [first, first + n) of x, n <= 8 kN.
template <WeightType kType, int kN>
__device__ void run(const Args& args, int64_t expert, int64_t output, int64_t first, int n) {
  constexpr bool kFp8 = kType != WeightType::kBF16;
  constexpr bool kBlocks = kType == WeightType::kFp8Block;
  constexpr int kAhead = 4;  // of 64 bytes each
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
  const uint8_t* const a =
      args.weight + (expert * args.n_out + output + g) * args.row_bytes + c * 16;
  const uint8_t* const b = a + 8 * args.row_bytes;
  const uint8_t* x[kN];
#pragma unroll
  for (int t = 0; t < kN; ++t) {
    // Rows that are not there repeat the last one; what comes of them is not stored.
    x[t] = args.x + (first + min(8 * t + g, n - 1)) * args.x_stride + c * 16;
  }
  const float* const scales = args.scales + expert * args.scales_an_expert;
  float sum[kN][4] = {}, part[kN][4] = {};
  const auto step = [&](uint4 u, uint4 v, const uint4 w[kN]) {
#pragma unroll
    for (int t = 0; t < kN; ++t) multiply<kFp8>(kFp8 ? part[t] : sum[t], u, v, w[t]);
  };
  // FP8, after 128 inputs: their sum, with a block's scales if it has them. Short chains of
  // products hide their latency, and keep more bits than the tensor cores' own long sums of FP8.
  const auto fold = [&](int64_t block) {
    const float scale = kBlocks ? scales[output / kFp8Block * args.scale_stride + block] : 1.0f;
    const float* const x_scales = args.x_scales + block * args.x_rows + first;
#pragma unroll
    for (int t = 0; t < kN; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = min(8 * t + 2 * c + i % 2, n - 1);
        const float factor = kBlocks ? scale * x_scales[r] : 1.0f;
        sum[t][i] = __fmaf_rn(part[t][i], factor, sum[t][i]);
        part[t][i] = 0.0f;
      }
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
      if (kFp8 && j % 2 == 1) fold(at / kFp8Block + j / 2);
    }
  }
  for (; at < args.row_bytes; at += 64) {
    uint4 w[kN];
#pragma unroll
    for (int t = 0; t < kN; ++t) w[t] = *reinterpret_cast<const uint4*>(x[t] + at);
    step(*reinterpret_cast<const uint4*>(a + at), *reinterpret_cast<const uint4*>(b + at), w);
    if (kFp8 && (at % kFp8Block == 64 || at + 64 == args.row_bytes)) fold(at / kFp8Block);
  }
#pragma unroll
  for (int t = 0; t < kN; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = 8 * t + 2 * c + i % 2;
      if (r >= n) continue;
      const int64_t o = output + g + 8 * (i / 2);
      float value = sum[t][i];
      if (kType == WeightType::kFp8Row) value *= scales[o] * args.x_scales[first + r];
      store_one(args.y, args.y_dtype, (first + r) * args.y_stride + o, value);
    }
  }
}

template <WeightType kType>
__global__ void __launch_bounds__(kThreads, 4) experts_kernel(const __grid_constant__ Args args) {
  const int64_t expert = blockIdx.y;
  const int64_t output = (int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * kOutputs;
  if (output >= args.n_out) return;
  const int64_t end = args.first[expert + 1];
  for (int64_t at = args.first[expert]; at < end; at += 32) {
    const int n = static_cast<int>(min(int64_t{32}, end - at));
    if (n <= 8) {
      run<kType, 1>(args, expert, output, at, n);
    } else if (n <= 16) {
      run<kType, 2>(args, expert, output, at, n);
    } else {
      run<kType, 4>(args, expert, output, at, n);
    }
  }
}

}  // namespace

void expert_linear(const CudaContext& context, const ExpertsCuda& experts, const int32_t* first,
                   ConstMatrix x, Matrix y) {
  const LinearCuda& w = experts.stack;
  const bool fp8 = w.type == WeightType::kFp8Row || w.type == WeightType::kFp8Block;
  REPLAYSSM_CHECK(x.rows == y.rows && x.cols == w.n_in && y.cols == w.n_out, "x ", x.rows, " x ",
                  x.cols, ", y ", y.rows, " x ", y.cols, ", weight ", w.n_out, " x ", w.n_in);
  REPLAYSSM_CHECK(
      w.type != WeightType::kF32 && w.n_in % (fp8 ? 64 : 32) == 0 && w.n_out % kOutputs == 0,
      "experts of ", w.n_out, " x ", w.n_in);
  REPLAYSSM_CHECK(x.dtype == DType::kBF16 && in_pieces(x) && is_activation(y.dtype),
                  dtype_name(x.dtype), " to ", dtype_name(y.dtype),
                  ", or rows that are not aligned");
  REPLAYSSM_CHECK(experts.n_experts <= 65535, experts.n_experts, " experts");
  if (y.rows == 0) return;
  Args args = {};
  args.weight = static_cast<const uint8_t*>(w.weight);
  args.scales = w.scales;
  args.scale_stride = fp8_scale_stride(w.n_in);
  args.scales_an_expert = w.type == WeightType::kFp8Row
                              ? w.n_out
                              : (w.n_out + kFp8Block - 1) / kFp8Block * args.scale_stride;
  args.n_out = w.n_out;
  args.row_bytes = weight_bytes(w.type, 1, w.n_in);
  args.first = first;
  args.x = static_cast<const uint8_t*>(x.data);
  args.x_stride = x.stride * 2;
  args.x_rows = x.rows;
  args.y = y.data;
  args.y_dtype = y.dtype;
  args.y_stride = y.stride;
  if (fp8) {
    const int64_t x_bytes = (x.rows * w.n_in + 255) / 256 * 256;
    REPLAYSSM_CHECK(x_bytes + x.rows * args.scale_stride * 4 <= CudaContext::kWorkspaceBytes,
                    x.rows, " rows of ", w.n_in);
    auto* const data = static_cast<uint8_t*>(context.workspace());
    auto* const scales = reinterpret_cast<float*>(data + x_bytes);
    quantise(context, w.type, x, {data, scales, x.rows});
    args.x = data;
    args.x_stride = w.n_in;
    args.x_scales = scales;
  }
  const dim3 grid(blocks_for(w.n_out, kOutputs * kWarps), static_cast<unsigned>(experts.n_experts));
  auto* const kernel = w.type == WeightType::kBF16     ? experts_kernel<WeightType::kBF16>
                       : w.type == WeightType::kFp8Row ? experts_kernel<WeightType::kFp8Row>
                                                       : experts_kernel<WeightType::kFp8Block>;
  kernel<<<grid, kThreads, 0, context.stream()>>>(args);
  check_launch("expert_linear");
}

}  // namespace replayssm::ops::cuda
