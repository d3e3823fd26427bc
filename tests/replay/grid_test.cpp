// The bookkeeping alone: which ring rows a step reads and writes, what a commit accepts.
#include "replay/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace replayssm {
namespace {

TEST(Grid, CheckpointsAndRows) {
  constexpr Grid grid{16, 31};
  static_assert(grid.checkpoint_of(0) == 0 && grid.checkpoint_of(15) == 0);
  static_assert(grid.checkpoint_of(16) == 16 &&
                grid.checkpoint_of((int64_t{1} << 40) + 17) == (int64_t{1} << 40) + 16);
  static_assert(grid.row_of(31) == 0 && grid.row_of(30) == 30);
  static_assert(!grid.fold_pending(15, 0) && grid.fold_pending(16, 0) &&
                !grid.fold_pending(16, 16));
  static_assert(Grid::rows_for(16, 8) == 31);
}

// A ring whose rows remember the token that they hold.
class RingModel {
 public:
  RingModel(const Grid& grid, int max_window)
      : grid_(grid), max_window_(max_window), held_(grid.ring_rows, -1) {}

  // A step over random windows at and past n; false if a row that it reads holds another token, or
  // if it writes a row that another block of the step still reads.
  bool step(std::mt19937_64& rng) {
    const int64_t pending = rng() % 4 == 0 ? rng() % max_window_ : 0;
    if (pending > 0) {  // a pass of its own, which commits nothing but its fold
      const Row pass{state_.n, state_.c, state_.n, static_cast<int32_t>(pending), 0, 0, 0, 0};
      if (!write(state_.n, state_.n + pending)) return false;
      if (commit_step(grid_, pass, 0, state_) != Status::kOk) return false;
    }
    // Mostly one token, or as many as may be: what walks to a grid point and then jumps over it.
    const int64_t most = max_window_ - pending;
    const uint64_t size = rng() % 3;
    const int n_tokens = static_cast<int>(size == 0   ? most
                                          : size == 1 ? std::min<int64_t>(1, most)
                                                      : rng() % (most + 1));
    const Row row{state_.n, state_.c, state_.n + pending, n_tokens, 0, 0, 0, 0};
    if (!write(row.start, row.start + n_tokens)) return false;
    const int64_t end = row.start + n_tokens;
    // Mostly everything or nothing is accepted: the two extremes.
    const uint64_t kind = rng() % 4;
    const int64_t advance = kind == 0 ? 0 : kind == 1 ? rng() % (end - row.n + 1) : end - row.n;
    return commit_step(grid_, row, advance, state_) == Status::kOk;
  }
  int64_t n() const { return state_.n; }

 private:
  // One launch that writes [from, to) while its blocks read [c, c + B) if a fold is pending, and
  // [g(n), from).
  bool write(int64_t from, int64_t to) {
    std::vector<char> read(held_.size(), 0);
    const auto read_rows = [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        if (held_[grid_.row_of(t)] != t) return false;
        read[grid_.row_of(t)] = 1;
      }
      return true;
    };
    if (grid_.fold_pending(state_.n, state_.c) && !read_rows(state_.c, state_.c + grid_.interval)) {
      return false;
    }
    if (!read_rows(grid_.checkpoint_of(state_.n), from)) return false;
    for (int64_t t = from; t < to; ++t) {
      if (read[grid_.row_of(t)]) return false;
      held_[grid_.row_of(t)] = t;
    }
    return true;
  }

  Grid grid_;
  int max_window_;
  std::vector<int64_t> held_;
  SequenceState state_;
};

bool survives(const Grid& grid, int max_window, int steps, uint64_t seed) {
  std::mt19937_64 rng(seed);
  RingModel model(grid, max_window);
  for (int i = 0; i < steps; ++i) {
    if (!model.step(rng)) return false;
  }
  return true;
}

TEST(Grid, NoRowIsOverwrittenInAMillionSteps) {
  for (int interval : {8, 16, 32, 64}) {
    for (int max_window : {1, 2, 3, 5, 8, 16, 33, 64}) {
      if (max_window > interval) continue;
      SCOPED_TRACE(std::to_string(interval) + " " + std::to_string(max_window));
      EXPECT_TRUE(survives({interval, Grid::rows_for(interval, max_window)}, max_window,
                           interval == 16 && max_window == 8 ? 1000000 : 20000, interval));
      EXPECT_FALSE(survives({interval, Grid::rows_for(interval, max_window) - 1}, max_window, 20000,
                            interval));
    }
  }
}

bool operator_equal(const SequenceState& a, const SequenceState& b) {
  return a.n == b.n && a.c == b.c && a.checkpoint_slot == b.checkpoint_slot &&
         a.ring_slot == b.ring_slot;
}

TEST(Grid, CommitMovesNAndTheFold) {
  const Grid grid{8, 23};
  SequenceState state{17, 8, 3, 5};
  const Row row{17, 8, 17, 4, 0, 3, 9, 5};
  EXPECT_EQ(commit_step(grid, row, 2, state), Status::kOk);
  EXPECT_TRUE(operator_equal(state, {19, 16, 9, 5}));
  // No fold pending: the slot stays.
  const Row next{19, 16, 19, 4, 0, 9, 3, 5};
  EXPECT_EQ(commit_step(grid, next, 0, state), Status::kOk);
  EXPECT_TRUE(operator_equal(state, {19, 16, 9, 5}));
  // Pending rows count: of [19, 23) all four are committed.
  const Row pending{19, 16, 21, 2, 0, 9, 3, 5};
  EXPECT_EQ(commit_step(grid, pending, 4, state), Status::kOk);
  EXPECT_TRUE(operator_equal(state, {23, 16, 9, 5}));
}

TEST(Grid, CommitRefusesWhatNoStepCouldMean) {
  const Grid grid{8, 23};
  const SequenceState before{17, 8, 3, 5};
  const Row row{17, 8, 17, 4, 0, 3, 9, 5};
  const auto refused = [&](const Row& r, int64_t advance) {
    SequenceState state = before;
    return commit_step(grid, r, advance, state) == Status::kOutOfRange &&
           operator_equal(state, before);
  };
  EXPECT_TRUE(refused(row, -1));
  EXPECT_TRUE(refused(row, 5));
  EXPECT_TRUE(refused(row, INT64_MAX));
  EXPECT_TRUE(refused(row, INT64_MIN));
  Row fold_only = row;
  fold_only.n_tokens = 0;
  EXPECT_TRUE(refused(fold_only, 1));
  Row stale = row;  // a row of an earlier step
  stale.n = 16;
  stale.start = 16;
  EXPECT_TRUE(refused(stale, 1));
  stale = row;  // folded since
  stale.c = 0;
  EXPECT_TRUE(refused(stale, 1));
}

TEST(Grid, CommitSweep) {
  const Grid grid{8, 23};
  SequenceState state{0, 0, 3, 5};
  EXPECT_EQ(commit_sweep(grid, {0, 0, 0, 7, 0, 3, 9, 5}, state), Status::kOk);
  EXPECT_TRUE(operator_equal(state, {7, 0, 3, 5}));
  EXPECT_EQ(commit_sweep(grid, {7, 0, 7, 1, 0, 3, 9, 5}, state), Status::kOk);
  EXPECT_TRUE(operator_equal(state, {8, 8, 9, 5}));
  EXPECT_EQ(commit_sweep(grid, {8, 8, 8, 100, 0, 9, 4, 5}, state), Status::kOk);
  EXPECT_TRUE(operator_equal(state, {108, 104, 4, 5}));
}

TEST(Grid, CommitSweepRefusesWhatNoSweepCouldMean) {
  const Grid grid{8, 23};
  const SequenceState before{17, 8, 3, 5};
  const Row row{17, 8, 17, 4, 0, 3, 9, 5};
  const auto refused = [&](const Row& r) {
    SequenceState state = before;
    return commit_sweep(grid, r, state) == Status::kOutOfRange && operator_equal(state, before);
  };
  EXPECT_FALSE(refused(row));
  Row negative = row;
  negative.n_tokens = -1;
  EXPECT_TRUE(refused(negative));
  Row pending = row;  // a sweep leaves nothing pending before it
  pending.start = 18;
  EXPECT_TRUE(refused(pending));
  Row stale = row;  // committed twice
  stale.n = 13;
  stale.start = 13;
  EXPECT_TRUE(refused(stale));
  stale = row;  // folded since
  stale.c = 0;
  EXPECT_TRUE(refused(stale));
}

}  // namespace
}  // namespace replayssm
