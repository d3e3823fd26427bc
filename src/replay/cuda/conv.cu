// The short convolution. A thread owns 16 bytes of neighbouring channels and walks along the
// tokens; the last inputs are in registers, as they came. Every output is the same sequence of
// operations whatever the window, so bits depend on nothing else.
//
// Blocks along z share a long row's tokens, kTurn at a time. Only the first of them touches the
// ring: it reads the rows before the window, then writes the window's last ones. So a prompt may be
// longer than the ring.
#include <cuda_bf16.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "replay/cuda/conv_cuda.h"
#include "replay/cuda/launch_in_turn.cuh"
#include "replay/cuda/ptx.cuh"
#include "replay/problem_reason.h"

namespace replayssm {
namespace cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTogether = 4;  // tokens whose loads are in flight at once
constexpr int kTurn = 16;     // tokens between two looks at the window's past
// A long row is not split into more blocks than this: several per SM of a large card.
constexpr int64_t kEnoughBlocks = 2048;

// 16 bytes of channels, widened and back.
template <DType kType>
struct Piece {
  static constexpr int kLanes = 16 / static_cast<int>(dtype_bytes(kType));

  __device__ static void widen(const uint4& raw, float x[kLanes]) {
    const uint32_t r[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kType == DType::kF32) {
        x[i] = __uint_as_float(r[i]);
      } else {
        x[2 * i] = __uint_as_float(r[i] << 16);
        x[2 * i + 1] = __uint_as_float(r[i] & 0xffff0000u);
      }
    }
  }
  __device__ static uint4 narrow(const float x[kLanes]) {
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kType == DType::kF32) {
        r[i] = __float_as_uint(x[i]);
      } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
        r[i] = *reinterpret_cast<const uint32_t*>(&pair);
      }
    }
    return make_uint4(r[0], r[1], r[2], r[3]);
  }
};

__device__ float silu(float x) { return __fdiv_rn(x, __fadd_rn(1.0f, expf(-x))); }

template <DType kType, int kWidth>
__global__ void __launch_bounds__(kThreads)
    conv_kernel(const __grid_constant__ ConvArgs a, const __grid_constant__ ConvProblem p) {
  using P = Piece<kType>;
  using Element = std::conditional_t<kType == DType::kF32, float, uint16_t>;
  dependencies_wait();
  const Row row = a.rows[blockIdx.x];
  const int channel = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * P::kLanes;
  if (row.read_slot < 0 || channel >= p.n_channels) return;
  const int64_t start = row.start, stop = start + row.n_tokens;

  const Element* in = static_cast<const Element*>(a.in.data) + channel;
  Element* out = static_cast<Element*>(a.out.data) + channel;
  Element* ring = static_cast<Element*>(a.ring.data) + row.ring_slot * a.ring.slot_stride + channel;
  const auto fed = [&](int64_t t) {
    return *reinterpret_cast<const uint4*>(in + (row.token + t - start) * a.in.token_stride);
  };
  const auto ring_row = [&](int r) {
    return reinterpret_cast<uint4*>(ring + r * a.ring.row_stride);
  };
  const int start_row = static_cast<int>(start % p.ring_rows);

  float tap[kWidth][P::kLanes], bias[P::kLanes];
#pragma unroll
  for (int l = 0; l < P::kLanes; l += 4) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float4 w =
          *reinterpret_cast<const float4*>(a.weight + int64_t{i} * p.n_channels + channel + l);
      tap[i][l] = w.x, tap[i][l + 1] = w.y, tap[i][l + 2] = w.z, tap[i][l + 3] = w.w;
    }
    float4 b = make_float4(0, 0, 0, 0);
    if (a.bias != nullptr) b = *reinterpret_cast<const float4*>(a.bias + channel + l);
    bias[l] = b.x, bias[l + 1] = b.y, bias[l + 2] = b.z, bias[l + 3] = b.w;
  }

  const int64_t step = int64_t{kTurn} * gridDim.z;
  for (int64_t first = start + int64_t{kTurn} * blockIdx.z; first < stop; first += step) {
    uint4 x[kWidth - 1 + kTogether];  // x_{t-w+1} .. x_{t+kTogether-1}
#pragma unroll
    for (int i = 0; i + 1 < kWidth; ++i) {
      const int64_t t = first - kWidth + 1 + i;
      if (t >= start) {
        x[i] = fed(t);
      } else if (t >= 0) {
        const int r = start_row + static_cast<int>(t - start);
        x[i] = *ring_row(r < 0 ? r + p.ring_rows : r);
      } else {
        x[i] = make_uint4(0, 0, 0, 0);
      }
    }
    const int64_t last = min(first + kTurn, stop);
    for (int64_t t = first; t < last; t += kTogether) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        x[kWidth - 1 + j] = t + j < last ? fed(t + j) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (t + j >= last) break;
        float sum[P::kLanes];
#pragma unroll
        for (int l = 0; l < P::kLanes; ++l) sum[l] = bias[l];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          float wide[P::kLanes];
          P::widen(x[j + i], wide);
#pragma unroll
          for (int l = 0; l < P::kLanes; ++l) sum[l] = __fmaf_rn(tap[i][l], wide[l], sum[l]);
        }
#pragma unroll
        for (int l = 0; l < P::kLanes; ++l) sum[l] = silu(sum[l]);
        *reinterpret_cast<uint4*>(out + (row.token + t + j - start) * a.out.token_stride) =
            P::narrow(sum);
      }
#pragma unroll
      for (int i = 0; i + 1 < kWidth; ++i) x[i] = x[i + kTogether];
    }
  }
  if (blockIdx.z != 0) return;
  const int64_t kept = max(start, stop - p.ring_rows);
  int r = static_cast<int>((start_row + (kept - start)) % p.ring_rows);
  for (int64_t t = kept; t < stop; ++t) {
    *ring_row(r) = fed(t);
    r = r + 1 == p.ring_rows ? 0 : r + 1;
  }
}

using Kernel = void (*)(ConvArgs, ConvProblem);

template <DType kType>
Kernel kernel_of(int width) {
  switch (width) {
    case 2:
      return conv_kernel<kType, 2>;
    case 3:
      return conv_kernel<kType, 3>;
    case 4:
      return conv_kernel<kType, 4>;
    case 5:
      return conv_kernel<kType, 5>;
    case 6:
      return conv_kernel<kType, 6>;
    case 7:
      return conv_kernel<kType, 7>;
    default:
      return conv_kernel<kType, 8>;
  }
}

class ConvKernelPlan final : public CudaConvPlan {
 public:
  explicit ConvKernelPlan(const ConvProblem& p)
      : CudaConvPlan(p),
        kernel_(p.activation == DType::kF32 ? kernel_of<DType::kF32>(p.width)
                                            : kernel_of<DType::kBF16>(p.width)),
        channels_(kThreads * static_cast<int>(16 / dtype_bytes(p.activation))) {}

  void run(const ConvArgs& args, int64_t n_tokens, cudaStream_t stream) const override {
    if (args.n_rows == 0) return;
    const int64_t rows = args.n_rows, pieces = (problem_.n_channels + channels_ - 1) / channels_;
    const int64_t turns = (n_tokens / rows + kTurn - 1) / kTurn;
    const int64_t share = (kEnoughBlocks + rows * pieces - 1) / (rows * pieces);
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(pieces),
                    static_cast<unsigned>(std::clamp<int64_t>(turns, 1, share)));
    launch_in_turn(kernel_, grid, kThreads, 0, stream, args, problem_);
  }

 private:
  Kernel kernel_;
  int channels_;  // of one block
};

}  // namespace
}  // namespace cuda

PlanResult<CudaConvPlan> plan_cuda(const ConvProblem& p) {
  std::string reason = problem_reason(p);
  if (!reason.empty()) return {nullptr, std::move(reason)};
  constexpr int kMaxChannels = 1 << 24;  // blocks along y are limited
  if (p.n_channels % 8 != 0 || p.n_channels > kMaxChannels) {
    return {nullptr, "the CUDA conv needs a multiple of 8 channels up to 2^24, not " +
                         std::to_string(p.n_channels)};
  }
  return {std::make_shared<cuda::ConvKernelPlan>(p), ""};
}

}  // namespace replayssm
