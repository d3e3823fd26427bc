// The grid: checkpoints exist only at absolute positions that are multiples of the interval B, and
// token t is always computed from the checkpoint at B * floor(t / B) and the ring rows up to t.
// Outputs and states are therefore pure functions of the token sequence (docs/contract.md).
#pragma once

#include <cstdint>

#include "replay/types.h"

namespace replayssm {

struct Grid {
  int32_t interval = 16;   // B: 8, 16, 32 or 64
  int32_t ring_rows = 47;  // R >= B + 2 * T_max - 1

  // g(n): the grid point at or below position n.
  constexpr int64_t checkpoint_of(int64_t n) const { return n / interval * interval; }
  // The ring row that holds token t.
  constexpr int64_t row_of(int64_t t) const { return t % ring_rows; }
  // True if the stored checkpoint c lags: the next step folds rows [c, c + B) and writes.
  constexpr bool fold_pending(int64_t n, int64_t c) const { return c < checkpoint_of(n); }

  // The smallest ring in which no row is overwritten while another block may still read it, when a
  // step touches at most max_window positions past n.
  static constexpr int32_t rows_for(int32_t interval, int32_t max_window) {
    return interval + 2 * max_window - 1;
  }
};

// The bookkeeping of a sequence, all of it: n committed tokens and the position c of
// its stored checkpoint (g(n) or g(n) - B). c = 0 means the zero state: no slot is read.
struct SequenceState {
  int64_t n = 0;
  int64_t c = 0;
  int32_t checkpoint_slot = 0;  // where S_c lives
  int32_t ring_slot = 0;        // ring and conv rows
};

// One row of a batch: a window [start, start + n_tokens) of one sequence.
struct Row {
  int64_t n = 0;            // committed tokens
  int64_t c = 0;            // position of the checkpoint in read_slot
  int64_t start = 0;        // first position of the window, >= n; rows [n, start) are pending
  int32_t n_tokens = 0;     // T; 0 only folds
  int64_t token = 0;        // index of the window's first token in the packed activation tensors
  int32_t read_slot = -1;   // -1: the row is skipped and its outputs stay untouched
  int32_t write_slot = -1;  // where a fold goes; may equal read_slot
  int32_t ring_slot = -1;
};

// After a step over `row`: commits `advance` tokens (the window's first token and the accepted
// drafts; 0 for a dropped step). Moves n, and c if the step folded. Refuses an advance outside [0,
// end of window - n], or a row that was made before the state last moved, and leaves the state as
// it was.
constexpr Status commit_step(const Grid& grid, const Row& row, int64_t advance,
                             SequenceState& state) {
  if (state.n != row.n || state.c != row.c) return Status::kOutOfRange;
  if (advance < 0 || advance > row.start + row.n_tokens - row.n) return Status::kOutOfRange;
  if (grid.fold_pending(row.n, row.c)) {
    state.c = grid.checkpoint_of(row.n);
    state.checkpoint_slot = row.write_slot;
  }
  state.n = row.n + advance;
  return Status::kOk;
}

// After a sweep over `row`: commits every token; the stored checkpoint is the last grid point's.
// Refuses start != n, a negative number of tokens, and a row that was made before the state last
// moved; then the state does not change.
constexpr Status commit_sweep(const Grid& grid, const Row& row, SequenceState& state) {
  if (state.n != row.n || state.c != row.c) return Status::kOutOfRange;
  if (row.start != row.n || row.n_tokens < 0) return Status::kOutOfRange;
  state.n = row.n + row.n_tokens;
  if (grid.checkpoint_of(state.n) != row.c) {
    state.c = grid.checkpoint_of(state.n);
    state.checkpoint_slot = row.write_slot;
  }
  return Status::kOk;
}

}  // namespace replayssm
