#include "ops/cuda/device.cuh"
#include "ops/cuda/norm_cuda.h"

namespace replayssm::ops::cuda {
namespace {

// A row's elements go to threads in eights, round robin; every thread sums its own in order, then
// block_sum(). The pieces of a load do not show in the order.
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct RowArgs {
  const void* x;
  DType x_dtype;
  int64_t x_stride;
  const void* delta;  // added to x, which is written back; may be null
  DType delta_dtype;
  int64_t delta_stride;
  const int64_t* rows;  // may be null
  void* y;
  DType y_dtype;
  int64_t y_stride;
  int64_t cols;
  const float* weight;
  bool zero_centred;
  float eps;
};

// What a row of so few columns holds stays in registers.
constexpr int kKept = 2;
constexpr int64_t kStride = kThreads * kEight;

// kStream: x fp32, in pieces, and at most kKept * kStride columns.
template <bool kPieces, bool kAdd, bool kStream>
__global__ void __launch_bounds__(kThreads) row_norm_kernel(const __grid_constant__ RowArgs args) {
  __shared__ float work[kWarps];
  start_in_turn();
  const DType x_dtype = kStream ? DType::kF32 : args.x_dtype;
  const int64_t row = blockIdx.x;
  const int64_t from = (args.rows == nullptr ? row : args.rows[row]) * args.x_stride;
  const int64_t begin = threadIdx.x * kEight;
  float kept[kKept][8] = {};
  float sum = 0.0f;
  const auto take = [&](float x[8], int64_t d) {
    const int n = static_cast<int>(min(kEight, args.cols - d));
    load_eight<kPieces>(x, args.x, x_dtype, from + d, n);
  };
  const auto add_up = [&](float x[8], int64_t d) {
    if constexpr (kAdd) {
      const int n = static_cast<int>(min(kEight, args.cols - d));
      float delta[8];
      load_eight<kPieces>(delta, args.delta, args.delta_dtype, row * args.delta_stride + d, n);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = x[i] + delta[i];
      store_eight<kPieces>(x, const_cast<void*>(args.x), x_dtype, from + d, n);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __fmaf_rn(x[i], x[i], sum);
  };
  if constexpr (kStream) {
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      if (begin + j * kStride < args.cols) take(kept[j], begin + j * kStride);
    }
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      if (begin + j * kStride < args.cols) add_up(kept[j], begin + j * kStride);
    }
  } else {
    for (int64_t d = begin; d < args.cols; d += kStride) {
      float x[8];
      take(x, d);
      add_up(x, d);
    }
  }
  const float factor = inverse_rms(block_sum<kWarps>(sum, work), args.cols, args.eps);
  const auto put = [&](float x[8], int64_t d) {
    const int n = static_cast<int>(min(kEight, args.cols - d));
    float weight[8];
    weights_at<kPieces>(weight, args.weight, args.zero_centred, d, n);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = x[i] * factor * weight[i];
    store_eight<kPieces>(x, args.y, args.y_dtype, row * args.y_stride + d, n);
  };
  if constexpr (kStream) {
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      if (begin + j * kStride < args.cols) put(kept[j], begin + j * kStride);
    }
  } else {
    for (int64_t d = begin; d < args.cols; d += kStride) {
      float x[8];
      take(x, d);
      put(x, d);
    }
  }
}

template <bool kAdd>
auto row_kernel(const RowArgs& args, bool pieces) {
  if (pieces && args.x_dtype == DType::kF32 && args.cols <= kKept * kStride) {
    return row_norm_kernel<true, kAdd, true>;
  }
  return pieces ? row_norm_kernel<true, kAdd, false> : row_norm_kernel<false, kAdd, false>;
}

void launch_rows(const CudaContext& context, const RowArgs& args, int64_t rows, bool pieces,
                 const char* name) {
  if (rows == 0) return;
  pieces = pieces && in_pieces(args.weight);
  auto* const kernel =
      args.delta != nullptr ? row_kernel<true>(args, pieces) : row_kernel<false>(args, pieces);
  launch_in_turn(context, name, kernel, static_cast<unsigned>(rows), kThreads, 0, args);
}

// Lanes per group; groups of eight elements go to them round robin.
struct GroupArgs {
  const void* y;
  DType y_dtype;
  int64_t y_row, y_group;  // strides
  const void* z;
  DType z_dtype;
  int64_t z_row, z_group;
  void* out;
  DType out_dtype;
  int64_t out_row, out_group;
  int64_t rows;
  int32_t groups, size;
  const float* weight;
  bool zero_centred;
  bool shared_weight;
  float eps;
  int32_t tile;  // GatedNorm::tile
  bool gated, gate_first, normalise, use_sigmoid;
};

// kHalves: all bf16, in pieces. kRounds: eights of a lane, kept in registers; 0: any number, and
// loaded twice. A block along y takes groups of one row. The lanes beyond the first sixteen would
// add zeros: 16 lanes have the sums of 32.
template <bool kPieces, bool kHalves, int kLanes, int kRounds>
__global__ void __launch_bounds__(kThreads)
    group_norm_kernel(const __grid_constant__ GroupArgs args) {
  start_in_turn();
  constexpr int kStep = kLanes * static_cast<int>(kEight);
  const int32_t group =
      static_cast<int32_t>(blockIdx.y * (kThreads / kLanes) + threadIdx.x / kLanes);
  if (group >= args.groups) return;
  const uint32_t mask = kLanes == 32 ? ~0u : 0xffffu << (threadIdx.x & 16);
  const int64_t row = blockIdx.x;
  const int32_t size = args.size;
  const int64_t y_from = row * args.y_row + group * args.y_group;
  const int64_t z_from = row * args.z_row + group * args.z_group;
  int32_t to = group;
  if (args.tile > 0) {
    const int32_t share = args.groups / args.tile;
    to = group % share * args.tile + group / share;
  }
  const int64_t out_from = row * args.out_row + to * args.out_group;
  const float* weight = args.weight;
  if (weight != nullptr && !args.shared_weight) weight += group * int64_t{size};
  const int32_t lane = static_cast<int32_t>(threadIdx.x % kLanes) * static_cast<int32_t>(kEight);
  const DType y_dtype = kHalves ? DType::kBF16 : args.y_dtype;
  const DType z_dtype = kHalves ? DType::kBF16 : args.z_dtype;
  const DType out_dtype = kHalves ? DType::kBF16 : args.out_dtype;
  const auto count = [&](int32_t d) { return min(static_cast<int32_t>(kEight), size - d); };

  const auto take = [&](float value[8], float gate[8], int32_t d) {
    load_eight<kPieces>(value, args.y, y_dtype, y_from + d, count(d));
    if (args.gated) load_eight<kPieces>(gate, args.z, z_dtype, z_from + d, count(d));
  };
  const auto apply_gate = [&](float value[8], const float gate[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) value[j] *= args.use_sigmoid ? sigmoid(gate[j]) : silu(gate[j]);
  };
  const auto put = [&](float value[8], const float gate[8], int32_t d, float factor) {
    if (args.normalise) {
      float w[8];
      weights_at<kPieces>(w, weight, args.zero_centred, d, count(d));
#pragma unroll
      for (int j = 0; j < 8; ++j) value[j] = value[j] * factor * w[j];
    }
    if (args.gated && !args.gate_first) apply_gate(value, gate);
    store_eight<kPieces>(value, args.out, out_dtype, out_from + d, count(d));
  };
  const auto factor_of = [&](float sum) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(mask, sum, offset);
    }
    return inverse_rms(sum, size, args.eps);
  };
  float sum = 0.0f;
  const auto add_up = [&](const float value[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = __fmaf_rn(value[j], value[j], sum);
  };

  if constexpr (kRounds > 0) {
    float value[kRounds][8] = {}, gate[kRounds][8] = {};
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (lane + i * kStep < size) take(value[i], gate[i], lane + i * kStep);
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (args.gated && args.gate_first) apply_gate(value[i], gate[i]);
      add_up(value[i]);
    }
    const float factor = args.normalise ? factor_of(sum) : 1.0f;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (lane + i * kStep < size) put(value[i], gate[i], lane + i * kStep, factor);
    }
  } else {
    float value[8], gate[8];
    for (int32_t d = lane; args.normalise && d < size; d += kStep) {
      take(value, gate, d);
      if (args.gated && args.gate_first) apply_gate(value, gate);
      add_up(value);
    }
    const float factor = args.normalise ? factor_of(sum) : 1.0f;
    for (int32_t d = lane; d < size; d += kStep) {
      take(value, gate, d);
      if (args.gated && args.gate_first) apply_gate(value, gate);
      put(value, gate, d, factor);
    }
  }
}

void launch_groups(const CudaContext& context, const GroupArgs& args, bool pieces,
                   const char* name) {
  if (args.rows * args.groups == 0) return;
  pieces = pieces && in_pieces(args.weight);
  const bool halves = pieces && args.y_dtype == DType::kBF16 && args.out_dtype == DType::kBF16 &&
                      (!args.gated || args.z_dtype == DType::kBF16);
  auto* kernel =
      pieces ? group_norm_kernel<true, false, 32, 0> : group_norm_kernel<false, false, 32, 0>;
  int32_t lanes = 32;
  if (halves && args.size <= 16 * kEight) {
    lanes = 16;
    kernel = group_norm_kernel<true, true, 16, 1>;
  } else if (halves && args.size <= 2 * 32 * kEight) {
    kernel = group_norm_kernel<true, true, 32, 2>;
  } else if (halves && args.size <= 4 * 32 * kEight) {
    kernel = group_norm_kernel<true, true, 32, 4>;
  }
  const dim3 grid(static_cast<unsigned>(args.rows), blocks_for(args.groups, kThreads / lanes));
  launch_in_turn(context, name, kernel, grid, kThreads, 0, args);
}

void check_activations(DType a, DType b) {
  REPLAYSSM_CHECK(is_activation(a) && is_activation(b), dtype_name(a), " to ", dtype_name(b));
}

}  // namespace

void rms_norm(const CudaContext& context, ConstMatrix x, NormWeight weight, float eps, Matrix y,
              const int64_t* rows) {
  REPLAYSSM_CHECK((rows != nullptr || x.rows == y.rows) && x.cols == y.cols, "x ", x.rows, " x ",
                  x.cols, ", y ", y.rows, " x ", y.cols);
  check_activations(x.dtype, y.dtype);
  const RowArgs args{
      x.data,  x.dtype,  x.stride, nullptr,     DType::kF32,         0,  rows, y.data,
      y.dtype, y.stride, x.cols,   weight.data, weight.zero_centred, eps};
  launch_rows(context, args, y.rows, in_pieces(x) && in_pieces(y), "rms_norm");
}

void add_rms_norm(const CudaContext& context, Matrix x, ConstMatrix delta, NormWeight weight,
                  float eps, Matrix y) {
  REPLAYSSM_CHECK(x.rows == y.rows && x.cols == y.cols && x.rows == delta.rows &&
                      x.cols == delta.cols && x.dtype == DType::kF32,
                  "x ", x.rows, " x ", x.cols, ", y ", y.rows, " x ", y.cols);
  check_activations(delta.dtype, y.dtype);
  const RowArgs args{
      x.data, x.dtype, x.stride, delta.data, delta.dtype, delta.stride,        nullptr,
      y.data, y.dtype, y.stride, x.cols,     weight.data, weight.zero_centred, eps};
  launch_rows(context, args, y.rows, in_pieces(x) && in_pieces(delta) && in_pieces(y),
              "add_rms_norm");
}

void head_norm(const CudaContext& context, Heads x, NormWeight weight, float eps) {
  check_activations(x.dtype, x.dtype);
  GroupArgs args = {};
  args.y = args.out = x.data;
  args.y_dtype = args.out_dtype = x.dtype;
  args.y_row = args.out_row = x.token_stride;
  args.y_group = args.out_group = x.head_stride;
  args.rows = x.tokens;
  args.groups = static_cast<int32_t>(x.heads);
  args.size = static_cast<int32_t>(x.dim);
  args.weight = weight.data;
  args.zero_centred = weight.zero_centred;
  args.shared_weight = true;
  args.eps = eps;
  args.normalise = true;
  launch_groups(context, args, in_pieces(x), "head_norm");
}

void gated_norm(const CudaContext& context, const GatedNorm& norm, ConstMatrix y, ConstMatrix z,
                Matrix out) {
  REPLAYSSM_CHECK(y.rows == z.rows && y.cols == z.cols && y.rows == out.rows && y.cols == out.cols,
                  "y ", y.rows, " x ", y.cols, ", z ", z.rows, " x ", z.cols, ", out ", out.rows,
                  " x ", out.cols);
  check_activations(y.dtype, z.dtype);
  check_activations(out.dtype, out.dtype);
  const int64_t size = norm.group_size;
  REPLAYSSM_CHECK(size > 0 && y.cols % size == 0, y.cols, " columns in groups of ", size);
  REPLAYSSM_CHECK(norm.tile == 0 || y.cols / size % norm.tile == 0, y.cols / size, " groups, tile ",
                  norm.tile);
  GroupArgs args = {};
  args.tile = static_cast<int32_t>(norm.tile);
  args.y = y.data, args.y_dtype = y.dtype, args.y_row = y.stride;
  args.z = z.data, args.z_dtype = z.dtype, args.z_row = z.stride;
  args.out = out.data, args.out_dtype = out.dtype, args.out_row = out.stride;
  args.y_group = args.z_group = args.out_group = size;
  args.rows = y.rows;
  args.groups = static_cast<int32_t>(y.cols / size);
  args.size = static_cast<int32_t>(size);
  args.weight = norm.weight.data;
  args.zero_centred = norm.weight.zero_centred;
  args.shared_weight = norm.shared_weight;
  args.eps = norm.eps;
  args.gated = true;
  args.gate_first = norm.order == GateOrder::kGateThenNorm;
  args.normalise = norm.order != GateOrder::kGateOnly;
  args.use_sigmoid = norm.gate == GateFunction::kSigmoid;
  launch_groups(context, args, in_pieces(y) && in_pieces(z) && in_pieces(out) && size % kEight == 0,
                "gated_norm");
}

}  // namespace replayssm::ops::cuda
