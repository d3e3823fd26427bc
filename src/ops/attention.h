// Causal attention over a paged KV cache.
//
//   out[t, h] = sum_{j=f..p} softmax_j(scale * q[t, h] . k[j, g]) v[j, g],   p the position of t,
//   g = h / (n_heads / n_kv_heads), f = AttentionRow::first, mostly 0
//
// Scores and sums are fp32; k and v are rounded once, to the cache's dtype. Positions go in tiles
// of 64 by absolute position; a tile gives (max, sum, weighted v), tiles are merged in order by
// online softmax. A row's bits depend on its q and on the cache up to p, not on batch, window or
// chunk. Positions beyond p are never multiplied, only skipped: they may hold NaN.
#pragma once

#include <cstdint>

#include "ops/context.h"
#include "ops/matrix.h"

namespace replayssm::ops {

constexpr int32_t kKvPage = 16;  // positions per page
constexpr int64_t pages_for(int64_t positions) { return (positions + kKvPage - 1) / kKvPage; }

struct KvShape {
  int32_t n_kv_heads = 1;
  int32_t head_dim = 64;
  DType dtype = DType::kF32;  // fp32 or bf16

  // Bytes of one page of one layer, k and v; a multiple of 64.
  constexpr int64_t page_bytes() const { return (n_kv_heads * head_bytes() + 63) / 64 * 64; }
  // Of one head in a page: k [head_dim][16], then v [16][padded_dim()].
  constexpr int64_t head_bytes() const {
    return kKvPage * (head_dim + padded_dim()) * dtype_bytes(dtype);
  }
  constexpr int64_t padded_dim() const { return (int64_t{head_dim} + 15) / 16 * 16; }
};

// One layer's pages: page i starts at data + i * page_stride_bytes. The layout inside is private.
struct KvPool {
  void* data = nullptr;
  int64_t page_stride_bytes = 0;  // >= KvShape::page_bytes()
};

// A window of one sequence: token i of it is at position start + i and is row token + i of the
// activations.
struct AttentionRow {
  const int32_t* pages = nullptr;  // page of positions [16 i, 16 i + 16) for every i in use
  int64_t start = 0;
  int32_t n_tokens = 0;
  int64_t token = 0;
  // Positions before it are left out: at most kMaxFirst, and start >= first. They hold finite
  // values.
  int32_t first = 0;
};
constexpr int32_t kMaxFirst = kKvPage;

// Writes k and v [tokens, n_kv_heads, head_dim] (fp32 or bf16) of every row's window to its pages.
// Rows must not share the pages that they write.
void kv_append(const Context& context, const KvShape& shape, const KvPool& pool,
               const AttentionRow* rows, int64_t n_rows, ConstHeads k, ConstHeads v);

// q and out [tokens, n_heads, head_dim], fp32 or bf16; they may be the same memory. The windows'
// own k and v must have been appended.
void attention(const Context& context, const KvShape& shape, const KvPool& pool,
               const AttentionRow* rows, int64_t n_rows, float scale, ConstHeads q, Heads out);

// k and v of one position and head as stored, [head_dim] each.
void kv_read(const KvShape& shape, const KvPool& pool, const int32_t* pages, int64_t position,
             int32_t kv_head, float* k, float* v);

}  // namespace replayssm::ops
