#include <cstring>

#include "ops/cuda/device.cuh"
#include "ops/cuda/kv_layout.cuh"
#include "replay/convert.h"

namespace replayssm::ops::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxDim = 256;

// One warp per head of a token: q heads (if any), then k heads, then v heads.
struct Args {
  KvView kv;
  AttentionRowsCuda rows;
  Heads q;  // heads 0: none
  ConstHeads k, v;
  QkPrologue prologue;
};

struct Unit {
  const void* from;
  DType dtype;
  int64_t index;
  void* to;
  DType to_dtype;
  bool permuted;  // to a page: element() of slot
  int32_t slot;
  NormWeight norm;
  bool rotate;
};

__device__ __forceinline__ void run_unit(const Args& args, const Unit& unit, int64_t token,
                                         float* work) {
  const int lane = threadIdx.x % 32;
  const int dim = args.kv.dim;
  float sum = 0.0f;
  for (int d = lane; d < dim; d += 32) {
    const float x = load_one(unit.from, unit.dtype, unit.index + d);
    work[d] = x;
    sum = __fmaf_rn(x, x, sum);
  }
  if (unit.norm.data != nullptr) {
    const float factor = inverse_rms(warp_sum(sum), dim, args.prologue.eps);
    for (int d = lane; d < dim; d += 32) {
      work[d] = work[d] * factor * weight_at(unit.norm.data, unit.norm.zero_centred, d);
    }
  }
  __syncwarp();
  const int n_pairs = unit.rotate ? args.prologue.rotary_dims / 2 : 0;
  const float* const table = args.prologue.rope_table + token * args.prologue.rotary_dims;
  for (int d = lane; d < dim; d += 32) {
    float x = work[d];
    if (d < n_pairs) {
      x = __fmaf_rn(x, table[d], -(work[d + n_pairs] * table[n_pairs + d]));
    } else if (d < 2 * n_pairs) {
      x = __fmaf_rn(x, table[d - n_pairs], work[d - n_pairs] * table[d]);
    }
    store_one(unit.to, unit.to_dtype, unit.permuted ? args.kv.element(unit.slot, d) : d, x);
  }
}

__global__ void __launch_bounds__(kWarps * 32) append_kernel(const __grid_constant__ Args args) {
  __shared__ float work[kWarps][kMaxDim];
  start_in_turn();
  const int32_t n_kv = args.kv.n_kv_heads;
  const int32_t n_q = static_cast<int32_t>(args.q.heads);
  const int32_t units = n_q + 2 * n_kv;
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t row = i / units / args.rows.max_tokens;
  const int32_t at = static_cast<int32_t>(i / units % args.rows.max_tokens);
  if (row >= args.rows.n_rows || at >= args.rows.n_tokens[row]) return;
  const int32_t which = static_cast<int32_t>(i % units);
  const int64_t token = args.rows.token[row] + at;
  const int64_t position = args.rows.start[row] + at;

  Unit unit = {};
  if (which < n_q) {
    unit.index = token * args.q.token_stride + which * args.q.head_stride;
    unit.from = args.q.data;
    unit.dtype = unit.to_dtype = args.q.dtype;
    unit.to = element_at(args.q.data, args.q.dtype, unit.index);
    unit.norm = args.prologue.q_norm;
    unit.rotate = true;
  } else {
    const bool key = which < n_q + n_kv;
    const int32_t head = (which - n_q) % n_kv;
    const ConstHeads& x = key ? args.k : args.v;
    const int64_t page = args.rows.pages[row * args.rows.pages_stride + position / kKvPage];
    unit.from = x.data;
    unit.dtype = x.dtype;
    unit.index = token * x.token_stride + head * x.head_stride;
    unit.to = key ? args.kv.keys(page, head) : args.kv.values(page, head);
    unit.to_dtype = args.kv.dtype;
    unit.permuted = true;
    unit.slot = static_cast<int32_t>(position % kKvPage);
    if (key) unit.norm = args.prologue.k_norm;
    unit.rotate = key;
  }
  run_unit(args, unit, token, work[threadIdx.x / 32]);
}

void append(const CudaContext& context, const Args& args, const char* name) {
  REPLAYSSM_CHECK(args.kv.dim <= kMaxDim, "head dim ", args.kv.dim);
  const int64_t units = args.q.heads + 2 * int64_t{args.kv.n_kv_heads};
  const int64_t count = units * args.rows.max_tokens * args.rows.n_rows;
  if (count == 0) return;
  launch_in_turn(context, name, append_kernel, blocks_for(count, kWarps), kWarps * 32, 0, args);
}

void check_keys(const KvShapeCuda& shape, ConstHeads k, ConstHeads v) {
  REPLAYSSM_CHECK(is_activation(k.dtype) && is_activation(v.dtype), "dtypes");
  REPLAYSSM_CHECK(k.heads == shape.n_kv_heads && v.heads == shape.n_kv_heads &&
                      k.dim == shape.head_dim && v.dim == shape.head_dim,
                  "k ", k.heads, " x ", k.dim, ", v ", v.heads, " x ", v.dim, ", cache ",
                  shape.n_kv_heads, " x ", shape.head_dim);
}

}  // namespace

void check_kv(const KvShapeCuda& shape, const KvPool& pool, const AttentionRowsCuda& rows) {
  REPLAYSSM_CHECK(is_activation(shape.dtype), dtype_name(shape.dtype));
  REPLAYSSM_CHECK(reinterpret_cast<uintptr_t>(pool.data) % 128 == 0 &&
                      pool.page_stride_bytes % 128 == 0 &&
                      pool.page_stride_bytes >= shape.page_bytes(),
                  "page stride ", pool.page_stride_bytes);
  REPLAYSSM_CHECK(rows.max_positions <= rows.pages_stride * kKvPage, rows.max_positions,
                  " positions in ", rows.pages_stride, " pages");
}

std::vector<float> page_values(const KvShapeCuda& shape, std::span<const std::byte> page) {
  // The view only reads.
  const KvView view = kv_view(shape, {const_cast<std::byte*>(page.data()), shape.page_bytes()});
  std::vector<float> out;
  out.reserve(static_cast<size_t>(kKvPage * shape.n_kv_heads * 2 * shape.head_dim));
  for (int32_t t = 0; t < kKvPage; ++t) {
    for (int32_t head = 0; head < shape.n_kv_heads; ++head) {
      for (const char* from : {view.keys(0, head), view.values(0, head)}) {
        for (int32_t d = 0; d < shape.head_dim; ++d) {
          const int64_t at = view.element(t, d);
          float value;
          if (shape.dtype == DType::kF32) {
            std::memcpy(&value, from + at * 4, sizeof value);
          } else {
            uint16_t bits;
            std::memcpy(&bits, from + at * 2, sizeof bits);
            value = bf16_to_float(bits);
          }
          out.push_back(value);
        }
      }
    }
  }
  return out;
}

void kv_append(const CudaContext& context, const KvShapeCuda& shape, const KvPool& pool,
               const AttentionRowsCuda& rows, ConstHeads k, ConstHeads v) {
  qk_prologue_append(context, {}, shape, pool, rows, {}, k, v);
}

void qk_prologue_append(const CudaContext& context, const QkPrologue& prologue,
                        const KvShapeCuda& shape, const KvPool& pool, const AttentionRowsCuda& rows,
                        Heads q, ConstHeads k, ConstHeads v) {
  check_kv(shape, pool, rows);
  check_keys(shape, k, v);
  REPLAYSSM_CHECK(q.heads == 0 || (q.dim == shape.head_dim && is_activation(q.dtype)), "q of ",
                  q.dim);
  REPLAYSSM_CHECK(prologue.rotary_dims <= shape.head_dim, prologue.rotary_dims, " rotary dims of ",
                  shape.head_dim);
  append(context, {kv_view(shape, pool), rows, q, k, v, prologue}, "kv_append");
}

}  // namespace replayssm::ops::cuda
