#include "ops/cuda/device.cuh"
#include "ops/cuda/norm_cuda.h"

namespace replayssm::ops::cuda {
namespace {

// A row's elements go to threads in eights, round robin; every thread sums its own in order, then
// fixed trees over lanes and warps. The pieces of a load do not show in the order.
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

template <bool kPieces, bool kAdd>
__global__ void __launch_bounds__(kThreads) row_norm_kernel(const __grid_constant__ RowArgs args) {
  __shared__ float sums[kWarps];
  const int64_t row = blockIdx.x;
  const int64_t from = (args.rows == nullptr ? row : args.rows[row]) * args.x_stride;
  float sum = 0.0f;
  for (int64_t d = threadIdx.x * kEight; d < args.cols; d += kThreads * kEight) {
    const int n = static_cast<int>(min(kEight, args.cols - d));
    float x[8];
    load_eight<kPieces>(x, args.x, args.x_dtype, from + d, n);
    if constexpr (kAdd) {
      float delta[8];
      load_eight<kPieces>(delta, args.delta, args.delta_dtype, row * args.delta_stride + d, n);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = x[i] + delta[i];
      store_eight<kPieces>(x, const_cast<void*>(args.x), args.x_dtype, from + d, n);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __fmaf_rn(x[i], x[i], sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = sums[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) total += sums[w];
  const float factor = inverse_rms(total, args.cols, args.eps);
  for (int64_t d = threadIdx.x * kEight; d < args.cols; d += kThreads * kEight) {
    const int n = static_cast<int>(min(kEight, args.cols - d));
    float x[8];
    load_eight<kPieces>(x, args.x, args.x_dtype, from + d, n);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (kPieces || i < n) {
        x[i] = x[i] * factor * weight_at(args.weight, args.zero_centred, d + i);
      }
    }
    store_eight<kPieces>(x, args.y, args.y_dtype, row * args.y_stride + d, n);
  }
}

void launch_rows(const CudaContext& context, const RowArgs& args, int64_t rows, bool pieces,
                 const char* name) {
  if (rows == 0) return;
  const bool add = args.delta != nullptr;
  auto* const kernel = pieces
                           ? (add ? row_norm_kernel<true, true> : row_norm_kernel<true, false>)
                           : (add ? row_norm_kernel<false, true> : row_norm_kernel<false, false>);
  kernel<<<static_cast<unsigned>(rows), kThreads, 0, context.stream()>>>(args);
  check_launch(name);
}

// A warp a group; eights go to lanes round robin.
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
  int64_t rows, groups, size;
  const float* weight;
  bool zero_centred;
  bool shared_weight;
  float eps;
  bool gated, gate_first, normalise, use_sigmoid;
};

template <bool kPieces>
__global__ void __launch_bounds__(kThreads)
    group_norm_kernel(const __grid_constant__ GroupArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (i >= args.rows * args.groups) return;
  const int64_t row = i / args.groups, group = i % args.groups;
  const int64_t y_from = row * args.y_row + group * args.y_group;
  const int64_t z_from = row * args.z_row + group * args.z_group;
  const int64_t out_from = row * args.out_row + group * args.out_group;
  const float* weight = args.weight;
  if (weight != nullptr && !args.shared_weight) weight += group * args.size;
  const int64_t lane = threadIdx.x % 32;

  const auto load = [&](float value[8], float gate[8], int64_t d, int n) {
    load_eight<kPieces>(value, args.y, args.y_dtype, y_from + d, n);
    if (!args.gated) return;
    load_eight<kPieces>(gate, args.z, args.z_dtype, z_from + d, n);
#pragma unroll
    for (int j = 0; j < 8; ++j) gate[j] = args.use_sigmoid ? sigmoid(gate[j]) : silu(gate[j]);
    if (args.gate_first) {
#pragma unroll
      for (int j = 0; j < 8; ++j) value[j] *= gate[j];
    }
  };
  float factor = 1.0f;
  if (args.normalise) {
    float sum = 0.0f;
    for (int64_t d = lane * kEight; d < args.size; d += 32 * kEight) {
      float value[8], gate[8];
      load(value, gate, d, static_cast<int>(min(kEight, args.size - d)));
#pragma unroll
      for (int j = 0; j < 8; ++j) sum = __fmaf_rn(value[j], value[j], sum);
    }
    factor = inverse_rms(warp_sum(sum), args.size, args.eps);
  }
  for (int64_t d = lane * kEight; d < args.size; d += 32 * kEight) {
    const int n = static_cast<int>(min(kEight, args.size - d));
    float value[8], gate[8];
    load(value, gate, d, n);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (args.normalise && (kPieces || j < n)) {
        value[j] = value[j] * factor * weight_at(weight, args.zero_centred, d + j);
      }
      if (args.gated && !args.gate_first) value[j] *= gate[j];
    }
    store_eight<kPieces>(value, args.out, args.out_dtype, out_from + d, n);
  }
}

void launch_groups(const CudaContext& context, const GroupArgs& args, bool pieces,
                   const char* name) {
  if (args.rows * args.groups == 0) return;
  auto* const kernel = pieces ? group_norm_kernel<true> : group_norm_kernel<false>;
  kernel<<<blocks_for(args.rows * args.groups, kWarps), kThreads, 0, context.stream()>>>(args);
  check_launch(name);
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
  args.groups = x.heads;
  args.size = x.dim;
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
  GroupArgs args = {};
  args.y = y.data, args.y_dtype = y.dtype, args.y_row = y.stride;
  args.z = z.data, args.z_dtype = z.dtype, args.z_row = z.stride;
  args.out = out.data, args.out_dtype = out.dtype, args.out_row = out.stride;
  args.y_group = args.z_group = args.out_group = size;
  args.rows = y.rows;
  args.groups = y.cols / size;
  args.size = size;
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
