// attention(): the choice of kernel, the fold of parts, and the plain kernel.
#include "ops/cuda/attention_fold.cuh"
#include "ops/cuda/attention_kernels_cuda.h"
#include "ops/cuda/device.cuh"

namespace replayssm::ops::cuda {
namespace {

constexpr int kThreads = 128;

// Folds the segments' partial results in order. One block per token and head.
__global__ void __launch_bounds__(kThreads)
    fold_kernel(const __grid_constant__ AttentionParams params) {
  start_in_turn();
  const AttentionRowsCuda& rows = params.rows;
  int64_t i = blockIdx.x;
  const int64_t head = i % params.q.heads;
  i /= params.q.heads;
  const int64_t row = i / rows.max_tokens;
  const int32_t at = static_cast<int32_t>(i % rows.max_tokens);
  if (at >= rows.n_tokens[row]) return;
  const int64_t token = rows.token[row] + at;
  const int segments = static_cast<int>((rows.start[row] + at) / kKvSegment) + 1;
  const int dim = params.kv.dim;
  const float* const first = params.part(token, head, 0);
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    float most = first[dim], sum = first[dim + 1], value = first[d];
#pragma unroll 8
    for (int s = 1; s < segments; ++s) {
      const float* const next = params.part(token, head, s);
      const Fold fold(most, next[dim]);
      most = fold.most;
      sum = fold(sum, next[dim + 1]);
      value = fold(value, next[d]);
    }
    store_one(params.out.data, params.out.dtype,
              token * params.out.token_stride + head * params.out.head_stride + d,
              value * normaliser(sum));
  }
}

constexpr int kPlainTile = 64;
constexpr int kMaxDim = 256;

// The kernel for shapes without a tensor-core instance. One block per token and head, all in fp32:
// tiles in order, positions one after another.
__global__ void __launch_bounds__(kThreads)
    plain_kernel(const __grid_constant__ AttentionParams params) {
  __shared__ float query[kMaxDim], score[kPlainTile];
  const AttentionRowsCuda& rows = params.rows;
  const KvView& kv = params.kv;
  int64_t i = blockIdx.x;
  const int head = static_cast<int>(i % params.q.heads);
  i /= params.q.heads;
  const int64_t row = i / rows.max_tokens;
  const int32_t at = static_cast<int32_t>(i % rows.max_tokens);
  if (at >= rows.n_tokens[row]) return;
  const int64_t token = rows.token[row] + at;
  const int64_t n = rows.start[row] + at + 1;
  const int32_t* const pages = rows.pages + row * rows.pages_stride;
  const int kv_head = head / params.group;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int d = threadIdx.x; d < kv.dim; d += kThreads) {
    query[d] = load_one(params.q.data, params.q.dtype,
                        token * params.q.token_stride + head * params.q.head_stride + d);
  }
  constexpr int kEach = kMaxDim / kThreads;
  float value[kEach] = {};
  float most = -INFINITY, sum = 0.0f;
  for (int64_t base = 0; base < n; base += kPlainTile) {
    const int count = static_cast<int>(min(int64_t{kPlainTile}, n - base));
    __syncthreads();  // the previous scores have been read; the query is complete
    for (int j = warp; j < count; j += kThreads / 32) {
      const int64_t position = base + j;
      const char* const keys = kv.keys(pages[position / kKvPage], kv_head);
      float x = 0.0f;
      for (int d = lane; d < kv.dim; d += 32) {
        x = __fmaf_rn(
            query[d],
            load_one(keys, kv.dtype, kv.element(static_cast<int32_t>(position % kKvPage), d)), x);
      }
      x = warp_sum(x);
      if (lane == 0) score[j] = x * params.scale_log2;
    }
    __syncthreads();
    float next = most;
    for (int j = 0; j < count; ++j) next = fmaxf(next, score[j]);
    const float from = next == -INFINITY ? 0.0f : next;
    const float shrink = exp2f(most - from);
    most = next;
    sum *= shrink;
    for (float& x : value) x *= shrink;
    for (int j = 0; j < count; ++j) {
      const int64_t position = base + j;
      const float weight = exp2f(score[j] - from);
      sum += weight;
      const char* const values = kv.values(pages[position / kKvPage], kv_head);
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const int d = threadIdx.x + e * kThreads;
        if (d >= kv.dim) continue;
        value[e] = __fmaf_rn(
            weight,
            load_one(values, kv.dtype, kv.element(static_cast<int32_t>(position % kKvPage), d)),
            value[e]);
      }
    }
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int d = threadIdx.x + e * kThreads;
    if (d >= kv.dim) continue;
    store_one(params.out.data, params.out.dtype,
              token * params.out.token_stride + head * params.out.head_stride + d,
              value[e] * normaliser(sum));
  }
}

unsigned blocks_of(int64_t n) {
  REPLAYSSM_CHECK(n < int64_t{1} << 31, n, " blocks");
  return static_cast<unsigned>(n);
}

// Segments go to blocks of their own where whole rows would leave multiprocessors idle, if their
// parts fit the workspace.
bool split_segments(const CudaContext& context, const AttentionParams& params,
                    const AttentionInstance& instance, int64_t segments) {
  if (segments == 1) return false;
  const int64_t parts =
      params.q.tokens * params.q.heads * segments * (params.kv.dim + 2) * int64_t{sizeof(float)};
  if (parts > CudaContext::kWorkspaceBytes) return false;
  const int64_t blocks = int64_t{params.n_blocks} * params.kv.n_kv_heads * params.rows.n_rows;
  const int64_t places = int64_t{context.n_sms()} * instance.blocks;
  const int64_t waves = (blocks + places - 1) / places;
  constexpr double kBusy = 0.85;
  return static_cast<double>(blocks) < kBusy * static_cast<double>(waves * places);
}

}  // namespace

void attention(const CudaContext& context, const KvShapeCuda& shape, const KvPool& pool,
               const AttentionRowsCuda& rows, float scale, ConstHeads q, Heads out) {
  check_kv(shape, pool, rows);
  REPLAYSSM_CHECK(is_activation(q.dtype) && is_activation(out.dtype), "dtypes");
  REPLAYSSM_CHECK(q.heads == out.heads && q.heads % shape.n_kv_heads == 0 &&
                      q.dim == shape.head_dim && out.dim == shape.head_dim,
                  "q ", q.heads, " x ", q.dim, ", out ", out.heads, " x ", out.dim, ", cache ",
                  shape.n_kv_heads, " x ", shape.head_dim);
  if (rows.n_rows == 0 || rows.max_tokens == 0) return;
  constexpr float kLog2E = 1.44269504088896340736f;
  AttentionParams params = {};
  params.kv = kv_view(shape, pool);
  params.rows = rows;
  params.q = q;
  params.out = out;
  params.group = static_cast<int32_t>(q.heads / shape.n_kv_heads);
  params.n_splits = 1;
  params.scale_log2 = scale * kLog2E;
  params.pieces = in_pieces(q) && in_pieces(ConstHeads(out));
  const unsigned token_blocks = blocks_of(int64_t{rows.n_rows} * rows.max_tokens * q.heads);
  if (!params.kv.permuted || q.dtype != DType::kBF16 || out.dtype != DType::kBF16) {
    REPLAYSSM_CHECK(shape.head_dim <= kMaxDim, "head dim ", shape.head_dim);
    plain_kernel<<<token_blocks, kThreads, 0, context.stream()>>>(params);
    check_launch("attention");
    return;
  }
  const int64_t query_rows = int64_t{rows.max_tokens} * params.group;
  const AttentionInstance& instance = attention_instance(shape.head_dim, query_rows);
  params.n_blocks = static_cast<int32_t>((query_rows + instance.rows - 1) / instance.rows);
  const int64_t segments = std::max<int64_t>(1, (rows.max_positions + kKvSegment - 1) / kKvSegment);
  if (split_segments(context, params, instance, segments)) {
    params.n_splits = static_cast<int32_t>(segments);
    params.parts = static_cast<float*>(context.workspace());
  }
  const unsigned blocks =
      blocks_of(int64_t{params.n_blocks} * shape.n_kv_heads * params.n_splits * rows.n_rows);
  // Once a device is enough, and it is cheap.
  cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       instance.shared_bytes);
  launch_in_turn(context, "attention", instance.kernel, blocks, instance.threads,
                 static_cast<size_t>(instance.shared_bytes), params);
  if (params.parts != nullptr) {
    launch_in_turn(context, "attention", fold_kernel, token_blocks, kThreads, 0, params);
  }
}

}  // namespace replayssm::ops::cuda
