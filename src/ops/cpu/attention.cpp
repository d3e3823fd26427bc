#include "ops/attention.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/parallel.h"
#include "replay/convert.h"

namespace replayssm::ops {
namespace {

const AttentionKernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return kAttentionAvx512;
    case Isa::kAvx2:
      return kAttentionAvx2;
    default:
      return kAttentionPortable;
  }
}

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

char* head_at(const KvShape& shape, const KvPool& pool, int32_t page, int64_t kv_head) {
  return static_cast<char*>(pool.data) + page * pool.page_stride_bytes +
         kv_head * shape.head_bytes();
}

void append_head(const KvShape& shape, const void* from, DType dtype, char* to, int64_t stride) {
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    if (dtype == DType::kBF16) {
      const uint16_t bits = static_cast<const uint16_t*>(from)[d];
      if (shape.dtype == DType::kBF16) {
        reinterpret_cast<uint16_t*>(to)[d * stride] = bits;
      } else {
        reinterpret_cast<float*>(to)[d * stride] = bf16_to_float(bits);
      }
    } else {
      const float value = static_cast<const float*>(from)[d];
      if (shape.dtype == DType::kBF16) {
        reinterpret_cast<uint16_t*>(to)[d * stride] = float_to_bf16(value);
      } else {
        reinterpret_cast<float*>(to)[d * stride] = value;
      }
    }
  }
}

int64_t segments_of(int64_t n_positions) {
  constexpr int64_t kPositions = kTile * kSegmentTiles;
  return (n_positions + kPositions - 1) / kPositions;
}

// A batch's rows in groups whose task table fits the stack.
constexpr int64_t kRowGroup = 256;

}  // namespace

void kv_append(const Context& context, const KvShape& shape, const KvPool& pool,
               const AttentionRow* rows, int64_t n_rows, ConstHeads k, ConstHeads v) {
  REPLAYSSM_CHECK(is_float(shape.dtype) && is_float(k.dtype) && is_float(v.dtype), "dtypes");
  REPLAYSSM_CHECK(k.heads == shape.n_kv_heads && v.heads == shape.n_kv_heads &&
                      k.dim == shape.head_dim && v.dim == shape.head_dim,
                  "k ", k.heads, " x ", k.dim, ", v ", v.heads, " x ", v.dim, ", cache ",
                  shape.n_kv_heads, " x ", shape.head_dim);
  for (int64_t r = 0; r < n_rows; ++r) {
    REPLAYSSM_CHECK(rows[r].token + rows[r].n_tokens <= k.tokens &&
                        rows[r].token + rows[r].n_tokens <= v.tokens,
                    "row ", r, " ends past the tokens");
  }
  const int64_t element = dtype_bytes(shape.dtype);
  const auto append = [&](const AttentionRow& row, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t position = row.start + i;
      const int64_t slot = position % kKvPage;
      for (int64_t h = 0; h < shape.n_kv_heads; ++h) {
        char* head = head_at(shape, pool, row.pages[position / kKvPage], h);
        append_head(shape, k.at(row.token + i, h), k.dtype, head + slot * element, kKvPage);
        head += (shape.head_dim * kKvPage + slot * shape.padded_dim()) * element;
        append_head(shape, v.at(row.token + i, h), v.dtype, head, 1);
      }
    }
  };
  const int64_t work = 2 * int64_t{shape.n_kv_heads} * shape.head_dim;
  if (n_rows == 1) {
    parallel_chunks(context, rows[0].n_tokens, work,
                    [&](int64_t first, int64_t last, int) { append(rows[0], first, last); });
  } else {
    parallel_chunks(context, n_rows, work, [&](int64_t first, int64_t last, int) {
      for (int64_t r = first; r < last; ++r) append(rows[r], 0, rows[r].n_tokens);
    });
  }
}

void attention(const Context& context, const KvShape& shape, const KvPool& pool,
               const AttentionRow* rows, int64_t n_rows, float scale, ConstHeads q, Heads out) {
  REPLAYSSM_CHECK(is_float(shape.dtype) && is_float(q.dtype) && is_float(out.dtype), "dtypes");
  REPLAYSSM_CHECK(q.heads == out.heads && q.heads % shape.n_kv_heads == 0 &&
                      q.dim == shape.head_dim && out.dim == shape.head_dim,
                  "q ", q.heads, " x ", q.dim, ", out ", out.heads, " x ", out.dim, ", cache ",
                  shape.n_kv_heads, " x ", shape.head_dim);
  const AttentionKernels& kernels = kernels_for(context.isa());
  const int64_t group = q.heads / shape.n_kv_heads;
  const int64_t padded = shape.padded_dim();
  const int64_t scratch_floats = Context::kScratchBytes / 4;
  const int64_t fit = (scratch_floats - attention_scratch_floats(0, padded)) /
                      (attention_scratch_floats(1, padded) - attention_scratch_floats(0, padded));
  const int64_t block_rows = std::min(kQueryRows, fit);
  REPLAYSSM_CHECK(block_rows >= 1, "head dim ", shape.head_dim);
  const int64_t block_heads = std::min(group, block_rows);
  const int64_t head_blocks = (group + block_heads - 1) / block_heads;
  const int64_t block_tokens = block_rows / block_heads;

  for (int64_t first = 0; first < n_rows; first += kRowGroup) {
    const int64_t count = std::min(kRowGroup, n_rows - first);
    int64_t begin[kRowGroup + 1];  // task at which a row's begin
    int64_t products = 0;
    int64_t max_segments = 1;
    begin[0] = 0;
    for (int64_t r = 0; r < count; ++r) {
      const AttentionRow& row = rows[first + r];
      REPLAYSSM_CHECK(
          row.token + row.n_tokens <= q.tokens && row.token + row.n_tokens <= out.tokens, "row ",
          first + r, " ends past the tokens");
      REPLAYSSM_CHECK(row.first >= 0 && row.first <= std::min<int64_t>(kMaxFirst, row.start),
                      "positions from ", row.first, " on at ", row.start);
      const int64_t token_blocks = (row.n_tokens + block_tokens - 1) / block_tokens;
      begin[r + 1] = begin[r] + token_blocks * head_blocks * shape.n_kv_heads;
      products += row.n_tokens * q.heads * (row.start + row.n_tokens) * shape.head_dim;
      max_segments = std::max(max_segments, segments_of(row.start + row.n_tokens));
    }
    const auto block_at = [&](int64_t index, int worker) {
      const int64_t r = std::upper_bound(begin, begin + count + 1, index) - begin - 1;
      const AttentionRow& row = rows[first + r];
      const int64_t local = index - begin[r];
      const int64_t per_tokens = head_blocks * shape.n_kv_heads;
      const int64_t token_blocks = (begin[r + 1] - begin[r]) / per_tokens;
      // The longest first: they are the last tokens.
      const int64_t token = (token_blocks - 1 - local / per_tokens) * block_tokens;
      const int64_t kv_head = local % per_tokens / head_blocks;
      const int64_t head = local % head_blocks * block_heads;

      AttentionBlock block;
      block.heads = head_at(shape, pool, 0, kv_head);
      block.page_stride_bytes = pool.page_stride_bytes;
      block.pages = row.pages;
      block.cache_bf16 = shape.dtype == DType::kBF16;
      block.head_dim = shape.head_dim;
      block.padded_dim = padded;
      block.scale = scale;
      block.start = row.start + token;
      block.first = row.first;
      block.n_tokens = std::min(block_tokens, row.n_tokens - token);
      block.n_heads = std::min(block_heads, group - head);
      block.q = static_cast<const char*>(q.at(row.token + token, kv_head * group + head));
      block.q_bf16 = q.dtype == DType::kBF16;
      block.q_token_stride = q.token_stride;
      block.q_head_stride = q.head_stride;
      block.out = static_cast<char*>(out.at(row.token + token, kv_head * group + head));
      block.out_bf16 = out.dtype == DType::kBF16;
      block.out_token_stride = out.token_stride;
      block.out_head_stride = out.head_stride;
      block.scratch = static_cast<float*>(context.scratch(worker));
      block.last_segment = segments_of(block.start + block.n_tokens);
      return block;
    };

    const int64_t tasks = begin[count];
    const int64_t part_floats = max_segments * block_tokens * block_heads * (padded + 2);
    if (products < kForkElements) {
      for (int64_t i = 0; i < tasks; ++i) kernels.attend(block_at(i, 0));
    } else if (tasks >= context.pool().size() || max_segments == 1 ||
               tasks * part_floats * 4 > static_cast<int64_t>(Context::kSharedScratchBytes)) {
      context.pool().parallel_for(
          tasks, [&](int64_t i, int worker) { kernels.attend(block_at(i, worker)); });
    } else {
      // Too few tasks for the threads: each segment is a task of its own.
      float* const parts = static_cast<float*>(context.shared_scratch());
      context.pool().parallel_for(tasks * max_segments, [&](int64_t i, int worker) {
        AttentionBlock block = block_at(i / max_segments, worker);
        block.parts = parts + i / max_segments * part_floats;
        block.first_segment = i % max_segments;
        block.last_segment = std::min(block.last_segment, block.first_segment + 1);
        kernels.attend(block);
      });
      context.pool().parallel_for(tasks, [&](int64_t i, int worker) {
        AttentionBlock block = block_at(i, worker);
        block.parts = parts + i * part_floats;
        kernels.finish(block);
      });
    }
  }
}

void kv_read(const KvShape& shape, const KvPool& pool, const int32_t* pages, int64_t position,
             int32_t kv_head, float* k, float* v) {
  const char* head = head_at(shape, pool, pages[position / kKvPage], kv_head);
  const int64_t slot = position % kKvPage;
  const int64_t k_elements = shape.head_dim * kKvPage;
  for (int64_t d = 0; d < shape.head_dim; ++d) {
    const int64_t at_k = d * kKvPage + slot;
    const int64_t at_v = k_elements + slot * shape.padded_dim() + d;
    if (shape.dtype == DType::kBF16) {
      k[d] = bf16_to_float(reinterpret_cast<const uint16_t*>(head)[at_k]);
      v[d] = bf16_to_float(reinterpret_cast<const uint16_t*>(head)[at_v]);
    } else {
      k[d] = reinterpret_cast<const float*>(head)[at_k];
      v[d] = reinterpret_cast<const float*>(head)[at_v];
    }
  }
}

}  // namespace replayssm::ops
