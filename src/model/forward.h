// One forward pass over packed windows of many sequences.
//
// The invariant: a token's logits are a pure function of its sequence's tokens, to the bit. They do
// not depend on the other rows, on window sizes, on step or sweep, on slots, pages or threads. (One
// build, instruction set and context; the replay grid and exact ops make it so.)
#pragma once

#include <cstdint>
#include <span>

#include "model/model.h"
#include "replay/types.h"

namespace replayssm {

enum class Phase : int32_t {
  kStep,   // at most max_window positions past n; afterwards commit_step
  kSweep,  // any length, start == n; every token is committed: afterwards commit_sweep
};

struct ForwardRow {
  Row row;  // row.token counts into ForwardBatch::tokens
  Phase phase = Phase::kStep;
  // Page of positions [16 i, 16 i + 16), for every i up to the window's last position. Rows must
  // not share the pages that they write.
  const int32_t* pages = nullptr;
};

struct ForwardBatch {
  std::span<const ForwardRow> rows;
  std::span<const int32_t> tokens;        // ids, packed
  std::span<const int64_t> logit_tokens;  // indices into tokens; logits come in this order
};

// One position of a sequence that the drafting head reads: it writes its entry of the cache there
// and gives logits of the token after it.
struct DraftRow {
  int32_t token = 0;  // at `position`, >= 1
  int64_t position = 0;
  const int32_t* pages = nullptr;  // as ForwardRow's
  int32_t ring_slot = 0;           // whose hidden state at position - 1 it goes on from
  int32_t from = -1;  // or, not negative, from the output of this row of the last draft pass
};

struct ForwardLimits {
  int64_t max_tokens = 256;  // packed tokens of a pass; longer prompts are cut by the caller
  int64_t max_rows = 64;
  int64_t max_logits = 256;
  int64_t max_positions = 4096;  // of one sequence
};

}  // namespace replayssm
