#include "ops/cuda/device.cuh"
#include "ops/cuda/moe_cuda.h"

namespace replayssm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr double kLeast = -INFINITY;

__device__ __forceinline__ double sigmoid_of(double x) { return 1.0 / (1.0 + exp(-x)); }

// A value and its index. Order of preference: the larger value, then the lower index.
struct Candidate {
  double value;
  int32_t index;  // kNone: none
};
__device__ Candidate better(Candidate a, Candidate b) {
  if (a.value > b.value) return a;
  if (b.value > a.value) return b;
  return a.index < b.index ? a : b;
}
constexpr int32_t kNone = 1 << 30;  // larger than any index

// The best of a warp, in all lanes.
__device__ Candidate warp_best(Candidate x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Candidate other = {__shfl_xor_sync(~0u, x.value, offset),
                             __shfl_xor_sync(~0u, x.index, offset)};
    x = better(x, other);
  }
  return x;
}

// The best of values[first, end) that comes after `last` in the order of preference, in all lanes.
__device__ Candidate best_after(const double* values, int32_t first, int32_t end, Candidate last) {
  Candidate best = {kLeast, kNone};
  for (int32_t i = first + static_cast<int32_t>(threadIdx.x); i < end; i += 32) {
    const Candidate here = {values[i], i};
    const bool after = last.value > here.value || (last.value == here.value && last.index < i);
    if (after) best = better(best, here);
  }
  return warp_best(best);
}
__device__ Candidate before_all() { return {static_cast<double>(INFINITY), -1}; }

// A double as an integer with the same order. Equal doubles have equal keys; no double has key 0.
__device__ __forceinline__ uint64_t key_of(double x) {
  const auto bits = static_cast<uint64_t>(__double_as_longlong(x + 0.0));  // -0 becomes 0
  return bits >> 63 != 0 ? ~bits : bits | uint64_t{1} << 63;
}

struct Key {
  uint64_t key;
  int32_t index;
};
// The largest of keys[lane], keys[lane + 32], ..., the first on a tie.
__device__ __forceinline__ Key best_key(const uint64_t* keys, int32_t n) {
  Key best = {0, kNone};
#pragma unroll 8
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n; i += 32) {
    const uint64_t here = keys[i];
    if (here > best.key) best = {here, i};
  }
  return best;
}
// The index of the largest key of a warp, the lower one on a tie.
__device__ __forceinline__ int32_t warp_best(Key x) {
  const auto high = static_cast<uint32_t>(x.key >> 32), low = static_cast<uint32_t>(x.key);
  const bool first = high == __reduce_max_sync(~0u, high);
  const uint32_t most = __reduce_max_sync(~0u, first ? low : 0);
  const bool second = first && low == most;
  return __reduce_min_sync(~0u, second ? x.index : kNone);
}

struct RouteArgs {
  Router router;
  const float* logits;
  int64_t stride;
  int32_t* experts;
  float* weights;
};

// Drops the experts outside of the top_groups groups with the largest sums of their two best
// values. sums [n_groups] is scratch. Ends with a __syncwarp() that publishes `values`.
__device__ __forceinline__ void keep_best_groups(const Router& router, double* values,
                                                 double* sums) {
  const int lane = static_cast<int>(threadIdx.x), n = router.n_experts;
  const int length = n / router.n_groups;
  for (int g = 0; g < router.n_groups; ++g) {
    const Candidate one = best_after(values, g * length, (g + 1) * length, before_all());
    const Candidate two = best_after(values, g * length, (g + 1) * length, one);
    if (lane == 0) sums[g] = one.value + two.value;
  }
  __syncwarp();
  Candidate last = before_all();
  for (int i = 0; i < router.top_groups; ++i) {
    last = best_after(sums, 0, router.n_groups, last);
  }
  // A group after the last chosen one, in the order of preference, is dropped.
  for (int e = lane; e < n; e += 32) {
    const Candidate group = {sums[e / length], e / length};
    const bool after =
        last.value > group.value || (last.value == group.value && last.index < group.index);
    if (after) values[e] = kLeast;
  }
  __syncwarp();
}

// The router of a mixture of experts: one warp (one block) per token. Scores are in double, as on
// the CPU, so that both choose the same experts.
//
//   1. values   the logit (softmax), or sigmoid(logit) + bias; NaN is the least
//   2. groups   if there are several, experts outside of the best ones are dropped
//   3. chosen   top_k times the best value. Lane l owns experts l, l + 32, ... and keeps its best
//               as an integer key. The warp takes the maximum; only its owner searches again
//   4. weights  score / sum of the chosen scores (if renormalise), times scale. A softmax score is
//               taken relative to the best chosen logit
//
// Dynamic shared memory, doubles: values [n_experts], which become keys in step 3; sums [n_groups];
// scores [top_k]; then int32 chosen [top_k]. There is one warp, so __syncwarp() publishes it all.
__global__ void __launch_bounds__(32) route_kernel(const __grid_constant__ RouteArgs args) {
  extern __shared__ double values[];
  start_in_turn();
  auto* const keys = reinterpret_cast<uint64_t*>(values);  // a lane overwrites its own entries only
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
  if (router.n_groups > 1) keep_best_groups(router, values, sums);
  for (int e = lane; e < n; e += 32) keys[e] = key_of(values[e]);
  Key mine = best_key(keys, n);  // this lane's best
  for (int i = 0; i < router.top_k; ++i) {
    const int32_t best = warp_best(mine);
    if (best % 32 == lane) {
      chosen[i] = best;
      keys[best] = 0;
      mine = best_key(keys, n);
    }
  }
  __syncwarp();
  const double top = static_cast<double>(logits[chosen[0]]);
  for (int i = lane; i < router.top_k; i += 32) {
    const double logit = static_cast<double>(logits[chosen[i]]);
    scores[i] = sigmoids ? sigmoid_of(logit) : exp(logit - top);
    experts[i] = chosen[i];
  }
  __syncwarp();
  // Every lane sums the chosen scores in their order; `all` is the softmax's denominator.
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

// One warp per expert. Each block counts all choices in shared memory (so blocks need not talk to
// each other); each warp then numbers the choices of its expert in order of the token.
__global__ void __launch_bounds__(kThreads)
    sort_kernel(const int32_t* __restrict__ experts, int64_t n, int32_t n_experts,
                int32_t* __restrict__ first, int32_t* __restrict__ row) {
  __shared__ int32_t count[kMaxExperts];
  start_in_turn();
  for (int32_t e = static_cast<int32_t>(threadIdx.x); e < n_experts; e += kThreads) count[e] = 0;
  __syncthreads();
  const auto* const fours = reinterpret_cast<const int4*>(experts);
  const int64_t n_fours = n / 4;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < n_fours; i += kThreads) {
    const int4 four = fours[i];
    atomicAdd(&count[four.x], 1);
    atomicAdd(&count[four.y], 1);
    atomicAdd(&count[four.z], 1);
    atomicAdd(&count[four.w], 1);
  }
  if (const int64_t i = 4 * n_fours + threadIdx.x; i < n) atomicAdd(&count[experts[i]], 1);
  __syncthreads();  // counts are complete
  const int32_t e =
      static_cast<int32_t>(blockIdx.x) * kWarps + static_cast<int32_t>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (e > n_experts) return;
  // first[e]: choices of all experts before e.
  int32_t at = 0;
  for (int32_t other = lane; other < e; other += 32) at += count[other];
  at = __reduce_add_sync(~0u, at);
  if (lane == 0) first[e] = at;
  if (e == n_experts || count[e] == 0) return;
  // Numbers the expert's choices in order: a ballot per element gives each lane the count before
  // it.
  const uint32_t before = (1u << lane) - 1;
#pragma unroll 4
  for (int64_t i = lane; i - lane < n_fours; i += 32) {
    const int4 four = i < n_fours ? fours[i] : make_int4(-1, -1, -1, -1);
    const int32_t mine[4] = {four.x, four.y, four.z, four.w};
    if (!__any_sync(~0u, four.x == e || four.y == e || four.z == e || four.w == e)) continue;
    int32_t to = at;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t all = __ballot_sync(~0u, mine[j] == e);
      to += __popc(all & before);
      at += __popc(all);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (mine[j] == e) row[4 * i + j] = to++;
    }
  }
  const int64_t i = 4 * n_fours + lane;
  const bool mine = i < n && experts[i] == e;
  const uint32_t all = __ballot_sync(~0u, mine);
  if (mine) row[i] = at + __popc(all & before);
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
  NormedOutput then;
};

// Sixteen bytes per thread.
__global__ void __launch_bounds__(kThreads) spread_kernel(const __grid_constant__ RowsArgs args) {
  start_in_turn();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.rows * args.cols) return;
  const int64_t r = i / args.cols, c = i % args.cols;
  const auto* const x = static_cast<const uint4*>(args.x) + r / args.top_k * args.x_stride;
  (static_cast<uint4*>(args.y) + args.row[r] * args.y_stride)[c] = x[c];
}

constexpr int kTogether = 4;  // experts whose loads are in flight at once

// One block per token. Groups of eight columns go to threads round robin, as in a row's norm, so
// that the fused norm has its bits.
template <bool kPieces>
__global__ void __launch_bounds__(kThreads) sum_kernel(const __grid_constant__ RowsArgs args) {
  __shared__ float work[kWarps];
  start_in_turn();
  const int64_t t = blockIdx.x;
  const auto* const x = static_cast<const float*>(args.x);
  const int32_t* const row = args.row + t * args.top_k;
  const float* const weights = args.weights + t * args.top_k;
  const ConstMatrix shared = args.shared.x, gate = args.shared.gate;
  float factor = 1.0f;
  if (gate.data != nullptr) factor = sigmoid(static_cast<const float*>(gate.data)[t * gate.stride]);
  float squares = 0.0f;
  for (int64_t c = threadIdx.x * kEight; c < args.cols; c += kThreads * kEight) {
    const int n = static_cast<int>(min(kEight, args.cols - c));
    float other[8], y[8], sum[8] = {};
    if (args.accumulate) load_eight<kPieces>(y, args.y, DType::kF32, t * args.y_stride + c, n);
    if (shared.data != nullptr) {
      load_eight<kPieces>(other, shared.data, DType::kF32, t * shared.stride + c, n);
    }
    for (int32_t first = 0; first < args.top_k; first += kTogether) {
      float value[kTogether][8], weight[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (first + k >= args.top_k) continue;
        weight[k] = weights[first + k];
        load_eight<kPieces>(value[k], x, DType::kF32, row[first + k] * args.x_stride + c, n);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (first + k >= args.top_k) continue;
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[j] = __fmaf_rn(weight[k], value[k][j], sum[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (args.accumulate) sum[j] = y[j] + sum[j];
      if (shared.data != nullptr) sum[j] = __fmaf_rn(factor, other[j], sum[j]);
      squares = __fmaf_rn(sum[j], sum[j], squares);
    }
    store_eight<kPieces>(sum, args.y, DType::kF32, t * args.y_stride + c, n);
  }
  const NormedOutput& then = args.then;
  if (then.y.data == nullptr) return;
  const float inverse = inverse_rms(block_sum<kWarps>(squares, work), args.cols, then.eps);
  for (int64_t c = threadIdx.x * kEight; c < args.cols; c += kThreads * kEight) {
    const int n = static_cast<int>(min(kEight, args.cols - c));
    float y[8], weight[8];
    load_eight<kPieces>(y, args.y, DType::kF32, t * args.y_stride + c, n);
    weights_at<kPieces>(weight, then.weight.data, then.weight.zero_centred, c, n);
#pragma unroll
    for (int j = 0; j < 8; ++j) y[j] = y[j] * inverse * weight[j];
    store_eight<kPieces>(y, then.y.data, then.y.dtype, t * then.y.stride + c, n);
  }
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
  launch_in_turn(
      context, "route", route_kernel, static_cast<unsigned>(logits.rows), 32, bytes,
      RouteArgs{router, static_cast<const float*>(logits.data), logits.stride, experts, weights});
}

void sort_by_expert(const CudaContext& context, const int32_t* experts, int64_t n_tokens,
                    int32_t top_k, int32_t n_experts, int32_t* first, int32_t* row) {
  REPLAYSSM_CHECK(n_experts <= kMaxExperts && reinterpret_cast<uintptr_t>(experts) % 16 == 0,
                  n_experts, " experts, or choices that are not aligned");
  launch_in_turn(context, "sort_by_expert", sort_kernel, blocks_for(int64_t{n_experts} + 1, kWarps),
                 kThreads, 0, experts, n_tokens * top_k, n_experts, first, row);
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
  launch_in_turn(context, "spread_rows", spread_kernel, blocks_for(args.rows * args.cols, kThreads),
                 kThreads, 0, args);
}

void sum_rows(const CudaContext& context, ConstMatrix x, const int32_t* row, const float* weights,
              int32_t top_k, Matrix y, bool accumulate, const SharedOutput& shared,
              const NormedOutput& then) {
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
  const bool normed = then.y.data != nullptr;
  REPLAYSSM_CHECK(
      !normed || (is_activation(then.y.dtype) && then.y.rows == y.rows && then.y.cols == y.cols),
      "normed ", then.y.rows, " x ", then.y.cols);
  if (y.rows == 0) return;
  const RowsArgs args{x.data,   x.dtype, x.stride, row,        weights, top_k, y.data,
                      y.stride, y.rows,  y.cols,   accumulate, shared,  then};
  const bool pieces = in_pieces(x) && in_pieces(ConstMatrix(y)) &&
                      (!with_shared || in_pieces(shared.x)) &&
                      (!normed || (in_pieces(ConstMatrix(then.y)) && in_pieces(then.weight.data)));
  auto* const kernel = pieces ? sum_kernel<true> : sum_kernel<false>;
  launch_in_turn(context, "sum_rows", kernel, static_cast<unsigned>(y.rows), kThreads, 0, args);
}

}  // namespace replayssm::ops::cuda
