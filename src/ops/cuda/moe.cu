#include <type_traits>

#include "ops/cuda/device.cuh"
#include "ops/cuda/moe_cuda.h"

namespace replayssm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr double kLeast = -INFINITY;

__device__ __forceinline__ double sigmoid_of(double x) { return 1.0 / (1.0 + exp(-x)); }

// The largest untaken value, the lower index on a tie; the same in all lanes of a warp.
struct Choice {
  double value;
  int32_t index;  // past all if there is none
};
__device__ Choice better(Choice a, Choice b) {
  if (a.value > b.value) return a;
  if (b.value > a.value) return b;
  return a.index < b.index ? a : b;
}
constexpr int32_t kNone = 1 << 30;

__device__ Choice warp_best(Choice x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Choice other = {__shfl_xor_sync(~0u, x.value, offset),
                          __shfl_xor_sync(~0u, x.index, offset)};
    x = better(x, other);
  }
  return x;
}

// Best of values[i], i = first + lane, + 32, ..., that come after `last` in order of preference.
__device__ Choice best_after(const double* values, int32_t first, int32_t end, Choice last) {
  Choice best = {kLeast, kNone};
  for (int32_t i = first + static_cast<int32_t>(threadIdx.x); i < end; i += 32) {
    const Choice here = {values[i], i};
    const bool after = last.value > here.value || (last.value == here.value && last.index < i);
    if (after) best = better(best, here);
  }
  return warp_best(best);
}
__device__ Choice before_all() { return {static_cast<double>(INFINITY), -1}; }

struct RouteArgs {
  Router router;
  const float* logits;
  int64_t stride;
  int32_t* experts;
  float* weights;
};

// A warp a token. Shared memory: values [n_experts], sums [n_groups], scores [top_k], chosen
// [top_k].
__global__ void __launch_bounds__(32) route_kernel(const __grid_constant__ RouteArgs args) {
  extern __shared__ double values[];
  const Router& router = args.router;
  const int lane = static_cast<int>(threadIdx.x), n = router.n_experts;
  double* const sums = values + n;
  double* const scores = sums + router.n_groups;
  auto* const chosen = reinterpret_cast<int32_t*>(scores + router.top_k);
  const float* const logits = args.logits + int64_t{blockIdx.x} * args.stride;
  int32_t* const experts = args.experts + int64_t{blockIdx.x} * router.top_k;
  float* const weights = args.weights + int64_t{blockIdx.x} * router.top_k;
  const bool sigmoids = router.score == RouterScore::kSigmoid;
  for (int e = lane; e < n; e += 32) {
    double value = static_cast<double>(logits[e]);  // softmax keeps the order of the logits
    if (sigmoids) {
      value = sigmoid_of(value);
      if (router.bias != nullptr) value += static_cast<double>(router.bias[e]);
    }
    values[e] = value == value ? value : kLeast;
  }
  __syncwarp();
  if (router.n_groups > 1) {
    const int length = n / router.n_groups;
    for (int g = 0; g < router.n_groups; ++g) {
      const Choice one = best_after(values, g * length, (g + 1) * length, before_all());
      const Choice two = best_after(values, g * length, (g + 1) * length, one);
      if (lane == 0) sums[g] = one.value + two.value;
    }
    __syncwarp();
    Choice last = before_all();
    for (int i = 0; i < router.top_groups; ++i) {
      last = best_after(sums, 0, router.n_groups, last);
    }
    // Groups that come after the last chosen fall out.
    for (int e = lane; e < n; e += 32) {
      const Choice group = {sums[e / length], e / length};
      const bool after =
          last.value > group.value || (last.value == group.value && last.index < group.index);
      if (after) values[e] = kLeast;
    }
    __syncwarp();
  }
  Choice last = before_all();
  for (int i = 0; i < router.top_k; ++i) {
    last = best_after(values, 0, n, last);
    if (lane == 0) chosen[i] = last.index;
  }
  __syncwarp();
  const double top = static_cast<double>(logits[chosen[0]]);
  for (int i = lane; i < router.top_k; i += 32) {
    const double logit = static_cast<double>(logits[chosen[i]]);
    scores[i] = sigmoids ? sigmoid_of(logit) : exp(logit - top);
    experts[i] = chosen[i];
  }
  __syncwarp();
  double all = 1.0, sum = 0.0;
  for (int i = 0; i < router.top_k; ++i) sum += scores[i];
  if (!sigmoids && !router.renormalise) {
    all = 0.0;
    for (int e = lane; e < n; e += 32) all += exp(static_cast<double>(logits[e]) - top);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) all += __shfl_xor_sync(~0u, all, offset);
    sum /= all;
  }
  const double scale = static_cast<double>(router.scale);
  const double factor = router.renormalise ? scale / (sum + 1e-20) : scale;
  for (int i = lane; i < router.top_k; i += 32) {
    weights[i] = static_cast<float>(scores[i] / all * factor);
  }
}

// A warp an expert: it counts the choices of lower experts, then numbers its own in order.
__global__ void __launch_bounds__(kThreads)
    sort_kernel(const int32_t* __restrict__ experts, int64_t n, int32_t n_experts,
                int32_t* __restrict__ first, int32_t* __restrict__ row) {
  const int32_t e =
      static_cast<int32_t>(blockIdx.x) * kWarps + static_cast<int32_t>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (e > n_experts) return;
  int32_t at = 0;
#pragma unroll 8
  for (int64_t i = lane; i < n; i += 32) at += experts[i] < e ? 1 : 0;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) at += __shfl_xor_sync(~0u, at, offset);
  if (lane == 0) first[e] = at;
  if (e == n_experts) return;
#pragma unroll 8
  for (int64_t i = lane; i - lane < n; i += 32) {
    const bool mine = i < n && experts[i] == e;
    const uint32_t all = __ballot_sync(~0u, mine);
    if (mine) row[i] = at + __popc(all & ((1u << lane) - 1));
    at += __popc(all);
  }
}

struct RowsArgs {
  const void* x;
  DType dtype;
  int64_t x_stride;
  const int32_t* row;
  const float* weights;
  int32_t top_k;
  void* y;
  int64_t y_stride;
  int64_t rows, cols;
  bool accumulate;
  SharedOutput shared;
};

// Sixteen bytes a thread.
__global__ void __launch_bounds__(kThreads) spread_kernel(const __grid_constant__ RowsArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.rows * args.cols) return;
  const int64_t r = i / args.cols, c = i % args.cols;
  const auto* const x = static_cast<const uint4*>(args.x) + r / args.top_k * args.x_stride;
  (static_cast<uint4*>(args.y) + args.row[r] * args.y_stride)[c] = x[c];
}

// Columns [c, c + kN) a thread; kN 4: in 16-byte pieces.
template <int kN>
__global__ void __launch_bounds__(kThreads) sum_kernel(const __grid_constant__ RowsArgs args) {
  using Piece = std::conditional_t<kN == 4, float4, float>;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, pieces = args.cols / kN;
  if (i >= args.rows * pieces) return;
  const int64_t t = i / pieces, c = i % pieces * kN;
  const auto* const x = static_cast<const float*>(args.x);
  float sum[kN] = {};
  for (int32_t k = 0; k < args.top_k; ++k) {
    const int64_t choice = t * args.top_k + k;
    const float weight = args.weights[choice];
    const Piece piece = *reinterpret_cast<const Piece*>(x + args.row[choice] * args.x_stride + c);
    const auto* const values = reinterpret_cast<const float*>(&piece);
#pragma unroll
    for (int j = 0; j < kN; ++j) sum[j] = __fmaf_rn(weight, values[j], sum[j]);
  }
  auto* const y = reinterpret_cast<Piece*>(static_cast<float*>(args.y) + t * args.y_stride + c);
  Piece piece = args.accumulate ? *y : Piece{};
  auto* const values = reinterpret_cast<float*>(&piece);
#pragma unroll
  for (int j = 0; j < kN; ++j) values[j] = args.accumulate ? values[j] + sum[j] : sum[j];
  if (args.shared.x.data != nullptr) {
    const ConstMatrix gate = args.shared.gate;
    const float factor = gate.data == nullptr
                             ? 1.0f
                             : sigmoid(static_cast<const float*>(gate.data)[t * gate.stride]);
    const Piece other = *reinterpret_cast<const Piece*>(
        static_cast<const float*>(args.shared.x.data) + t * args.shared.x.stride + c);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      values[j] = __fmaf_rn(factor, reinterpret_cast<const float*>(&other)[j], values[j]);
    }
  }
  *y = piece;
}

}  // namespace

void route(const CudaContext& context, const Router& router, ConstMatrix logits, int32_t* experts,
           float* weights) {
  REPLAYSSM_CHECK(logits.dtype == DType::kF32 && logits.cols == router.n_experts,
                  dtype_name(logits.dtype), ", ", logits.cols, " logits of ", router.n_experts);
  REPLAYSSM_CHECK(router.n_experts >= 1 && router.n_experts <= kMaxExperts && router.top_k >= 1 &&
                      router.n_groups >= 1 && router.n_experts % router.n_groups == 0 &&
                      router.top_groups >= 1 && router.top_groups <= router.n_groups &&
                      router.top_k <= router.n_experts / router.n_groups * router.top_groups,
                  router.top_k, " of ", router.n_experts, " experts, ", router.n_groups, " groups");
  REPLAYSSM_CHECK(router.bias == nullptr || router.score == RouterScore::kSigmoid,
                  "a softmax bias");
  if (logits.rows == 0) return;
  const auto doubles = static_cast<size_t>(router.n_experts) +
                       static_cast<size_t>(router.n_groups) + static_cast<size_t>(router.top_k);
  const size_t bytes =
      doubles * sizeof(double) + static_cast<size_t>(router.top_k) * sizeof(int32_t);
  cudaFuncSetAttribute(route_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kMaxExperts * (3 * static_cast<int>(sizeof(double)) + 4));
  route_kernel<<<static_cast<unsigned>(logits.rows), 32, bytes, context.stream()>>>(
      {router, static_cast<const float*>(logits.data), logits.stride, experts, weights});
  check_launch("route");
}

void sort_by_expert(const CudaContext& context, const int32_t* experts, int64_t n_tokens,
                    int32_t top_k, int32_t n_experts, int32_t* first, int32_t* row) {
  sort_kernel<<<blocks_for(int64_t{n_experts} + 1, kWarps), kThreads, 0, context.stream()>>>(
      experts, n_tokens * top_k, n_experts, first, row);
  check_launch("sort_by_expert");
}

void spread_rows(const CudaContext& context, ConstMatrix x, const int32_t* row, int32_t top_k,
                 Matrix y) {
  REPLAYSSM_CHECK(x.dtype == y.dtype && x.cols == y.cols && y.rows == x.rows * top_k, "x ", x.rows,
                  " x ", x.cols, ", y ", y.rows, " x ", y.cols);
  REPLAYSSM_CHECK(is_activation(x.dtype) && in_pieces(x) && in_pieces(ConstMatrix(y)),
                  "rows that are not aligned");
  if (y.rows == 0) return;
  const int64_t piece = 16 / dtype_bytes(x.dtype);
  const RowsArgs args{x.data,           x.dtype, x.stride / piece, row,  nullptr, top_k, y.data,
                      y.stride / piece, y.rows,  y.cols / piece,   false};
  spread_kernel<<<blocks_for(args.rows * args.cols, kThreads), kThreads, 0, context.stream()>>>(
      args);
  check_launch("spread_rows");
}

void sum_rows(const CudaContext& context, ConstMatrix x, const int32_t* row, const float* weights,
              int32_t top_k, Matrix y, bool accumulate, const SharedOutput& shared) {
  REPLAYSSM_CHECK(x.dtype == DType::kF32 && y.dtype == DType::kF32 && x.cols == y.cols &&
                      x.rows == y.rows * top_k,
                  "x ", x.rows, " x ", x.cols, ", y ", y.rows, " x ", y.cols);
  const bool with_shared = shared.x.data != nullptr, gated = shared.gate.data != nullptr;
  REPLAYSSM_CHECK(!with_shared || (shared.x.dtype == DType::kF32 && shared.x.rows == y.rows &&
                                   shared.x.cols == y.cols),
                  "shared ", shared.x.rows, " x ", shared.x.cols);
  REPLAYSSM_CHECK(!gated || (shared.gate.dtype == DType::kF32 && shared.gate.rows == y.rows &&
                             shared.gate.cols == 1),
                  "gate ", shared.gate.rows, " x ", shared.gate.cols);
  if (y.rows == 0) return;
  const RowsArgs args{x.data, x.dtype,  x.stride, row,    weights,    top_k,
                      y.data, y.stride, y.rows,   y.cols, accumulate, shared};
  const bool pieces =
      in_pieces(x) && in_pieces(ConstMatrix(y)) && (!with_shared || in_pieces(shared.x));
  auto* const kernel = pieces ? sum_kernel<4> : sum_kernel<1>;
  const int64_t threads = y.rows * y.cols / (pieces ? 4 : 1);
  kernel<<<blocks_for(threads, kThreads), kThreads, 0, context.stream()>>>(args);
  check_launch("sum_rows");
}

}  // namespace replayssm::ops::cuda
