// src/ops/attention.h on the device: causal attention over a paged KV cache.
//
// Pages hold kKvPage positions; page i of a layer starts at data + i * page_stride_bytes; the
// layout inside is private, and whole pages may be copied. One kernel serves decode, verification
// and prefill: positions go in tiles of 64 and segments of kKvSegment by absolute position, merged
// in order, so a row's bits depend on its q and on the cache up to its position alone, in both
// modes. Positions beyond it are never multiplied: they, and the rest of the pages, may hold NaN.
//
// Tensor cores: bf16 q, cache and out, head dims 64, 128 and 256, weights of positions rounded to
// bf16. All else (fp32, other dims up to 256) by a plain kernel with fp32 weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/attention.h"
#include "ops/cuda/context_cuda.h"
#include "ops/matrix.h"
#include "ops/norm.h"

namespace replayssm::ops::cuda {

constexpr int32_t kKvSegment = 256;

struct KvShapeCuda {
  int32_t n_kv_heads = 1;
  int32_t head_dim = 64;
  DType dtype = DType::kBF16;  // fp32 or bf16

  // Bytes of one page of one layer, k and v; a multiple of 128.
  constexpr int64_t page_bytes() const { return (n_kv_heads * head_bytes() + 127) / 128 * 128; }
  // Of one head in a page: k [16][head_dim], then v likewise.
  constexpr int64_t head_bytes() const { return 2 * kKvPage * head_dim * dtype_bytes(dtype); }
};

// k and v of a page that was copied to the host, fp32 [kKvPage, n_kv_heads, 2, head_dim].
std::vector<float> page_values(const KvShapeCuda& shape, std::span<const std::byte> page);

// The windows of a step, as device arrays; the sizes below them are known at capture.
struct AttentionRowsCuda {
  const int64_t* start = nullptr;     // [n_rows] position of the window's first token
  const int32_t* n_tokens = nullptr;  // [n_rows] tokens in the window; 0: no row
  const int64_t* token = nullptr;     // [n_rows] its first row of the activations
  const int32_t* pages = nullptr;     // [n_rows, pages_stride] page of positions [16 i, 16 i + 16)
  int64_t pages_stride = 0;
  int32_t n_rows = 0;
  int32_t max_tokens = 0;     // no window is longer
  int64_t max_positions = 0;  // no window ends beyond it (rounded up as buckets go)
};

// Writes k and v [tokens, n_kv_heads, head_dim] of every row's window to its pages. The pool's data
// is 128-byte aligned and its page stride a multiple of 128.
void kv_append(const CudaContext& context, const KvShapeCuda& shape, const KvPool& pool,
               const AttentionRowsCuda& rows, ConstHeads k, ConstHeads v);

// What precedes attention, in one kernel: qk-norm of q (in place) and of k (null weights:
// none), rotary positions (rotary_dims 0: none), and the append of k and v. q and k as after
// head_norm() and rope_apply(), up to one rounding between the two, which is left out; k itself
// stays as it is.
struct QkPrologue {
  NormWeight q_norm, k_norm;
  float eps = 1e-6f;
  const float* rope_table = nullptr;  // rope_angles() of all tokens
  int32_t rotary_dims = 0;
};
void qk_prologue_append(const CudaContext& context, const QkPrologue& prologue,
                        const KvShapeCuda& shape, const KvPool& pool, const AttentionRowsCuda& rows,
                        Heads q, ConstHeads k, ConstHeads v);

// q and out [tokens, n_heads, head_dim]; they may be the same memory. The windows' own k and v must
// have been appended.
void attention(const CudaContext& context, const KvShapeCuda& shape, const KvPool& pool,
               const AttentionRowsCuda& rows, float scale, ConstHeads q, Heads out);

}  // namespace replayssm::ops::cuda
