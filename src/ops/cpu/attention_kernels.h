// The inner call of attention, one per translation unit (see linear_kernels.h).
#pragma once

#include <cstdint>

namespace replayssm::ops {

constexpr int64_t kTile = 64;          // positions, by absolute position
constexpr int64_t kSegmentTiles = 16;  // tiles merged into one part before parts are merged
constexpr int64_t kQueryRows = 64;     // (token, head) pairs of one call

// Consecutive tokens of one sequence times query heads that share a kv head.
struct AttentionBlock {
  const char* heads = nullptr;  // this kv head in page 0
  int64_t page_stride_bytes = 0;
  const int32_t* pages = nullptr;
  bool cache_bf16 = false;
  int64_t head_dim = 0;
  int64_t padded_dim = 0;
  float scale = 0.0f;

  int64_t start = 0;  // position of token 0 of the block
  int64_t first = 0;  // positions before it, of page 0, get weight 0
  int64_t n_tokens = 0;
  int64_t n_heads = 0;  // n_tokens * n_heads <= kQueryRows

  const char* q = nullptr;  // token 0, head 0 of the block; strides in elements
  bool q_bf16 = false;
  int64_t q_token_stride = 0;
  int64_t q_head_stride = 0;
  char* out = nullptr;
  bool out_bf16 = false;
  int64_t out_token_stride = 0;
  int64_t out_head_stride = 0;

  float* scratch = nullptr;  // attention_scratch_floats

  // Segments [first_segment, last_segment) only, each row's part left at parts + (segment * rows +
  // row) * (padded_dim + 2) for finish; or, parts null, all of them and the output.
  float* parts = nullptr;
  int64_t first_segment = 0;
  int64_t last_segment = 0;
};

constexpr int64_t attention_scratch_floats(int64_t rows, int64_t padded_dim) {
  return rows * (3 * padded_dim + kTile + 4) + 8 * padded_dim;
}

struct AttentionKernels {
  void (*attend)(const AttentionBlock& block);
  void (*finish)(const AttentionBlock& block);  // merges parts in order and writes the output
};

extern const AttentionKernels kAttentionPortable;
extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;

}  // namespace replayssm::ops
