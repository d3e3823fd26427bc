// Commits one step or sweep over a batch. Called by the owner of the sequences' n and c.
#pragma once

#include <cstdint>

#include "replay/grid.h"
#include "replay/types.h"

namespace replayssm {

struct CommitArgs {
  const Row* rows = nullptr;  // a skipped row (read_slot -1) moves nothing
  int32_t n_rows = 0;
  bool is_sweep = false;             // every token is committed; `advance` is not read
  const int32_t* advance = nullptr;  // [n_rows], see commit_step
  SequenceState* states = nullptr;   // [n_rows]: row i's sequence
  int64_t* n_refused = nullptr;      // += rows that were refused and moved nothing
};

// One row by commit_step() or commit_sweep(). Also refuses a row that no step or sweep can have
// had.
constexpr Status commit_row(const Grid& grid, const Row& row, bool is_sweep, int64_t advance,
                            SequenceState& state) {
  constexpr int64_t kMaxPosition = int64_t{1} << 62;
  if (row.n < 0 || row.start < row.n || row.start > kMaxPosition || row.n_tokens < 0) {
    return Status::kOutOfRange;
  }
  return is_sweep ? commit_sweep(grid, row, state) : commit_step(grid, row, advance, state);
}

// Row i of a batch; false if it was refused.
constexpr bool commit_row(const Grid& grid, const CommitArgs& args, int32_t i) {
  const Row& row = args.rows[i];
  if (row.read_slot < 0) return true;
  const int64_t advance = args.is_sweep ? 0 : args.advance[i];
  return commit_row(grid, row, args.is_sweep, advance, args.states[i]) == Status::kOk;
}

}  // namespace replayssm
