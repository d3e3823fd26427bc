// Commits by the C interface: in range they move n and c as the grid says, else nothing.
#include <gtest/gtest.h>

#include <vector>

#include "capi_args.h"

namespace replayssm::test {
namespace {

class CapiCommit : public testing::Test {
 protected:
  std::string reason_;
  CPlan plan_ = c_plan(problem_of(Family::kGdn, 2, 2, 24, 20, 8, 4), RSSM_CPU, &reason_);
};

rssm_row row_of(int64_t n, int64_t c, int64_t start, int32_t n_tokens) {
  return {n, c, start, n_tokens, 0, 0, 5, 6, 7, 0};
}

void expect_state(const rssm_sequence& s, int64_t n, int64_t c, int32_t slot) {
  EXPECT_EQ(s.n, n);
  EXPECT_EQ(s.c, c);
  EXPECT_EQ(s.checkpoint_slot, slot);
  EXPECT_EQ(s.ring_slot, 7);
}

TEST_F(CapiCommit, StepsMoveAsFarAsTheWindow) {
  const rssm_row row = row_of(17, 8, 18, 3);  // a fold is pending, one row too
  for (int64_t advance = 0; advance <= 4; ++advance) {
    rssm_sequence s = {17, 8, 5, 7};
    EXPECT_EQ(rssm_commit_row(plan_.get(), &row, advance, &s), RSSM_OK);
    expect_state(s, 17 + advance, 16, 6);
    // The same row again is one that was made before the sequence last moved.
    EXPECT_EQ(rssm_commit_row(plan_.get(), &row, 0, &s), RSSM_OUT_OF_RANGE);
    expect_state(s, 17 + advance, 16, 6);
  }
  for (int64_t advance : {int64_t{-1}, int64_t{5}, std::numeric_limits<int64_t>::max(),
                          std::numeric_limits<int64_t>::min()}) {
    rssm_sequence s = {17, 8, 5, 7};
    EXPECT_EQ(rssm_commit_row(plan_.get(), &row, advance, &s), RSSM_OUT_OF_RANGE);
    expect_state(s, 17, 8, 5);
  }
}

TEST_F(CapiCommit, RowsThatNoCallCanHaveHadAreRefused) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const rssm_row& row :
       {row_of(17, 8, 16, 3), row_of(17, 8, kMax, 3), row_of(17, 8, 17, -1)}) {
    rssm_sequence s = {17, 8, 5, 7};
    EXPECT_EQ(rssm_commit_row(plan_.get(), &row, 0, &s), RSSM_OUT_OF_RANGE);
    EXPECT_EQ(rssm_commit_sweep_row(plan_.get(), &row, &s), RSSM_OUT_OF_RANGE);
    expect_state(s, 17, 8, 5);
  }
  rssm_sequence s = {17, 8, 5, 7};
  const rssm_row row = row_of(17, 8, 17, 1);
  EXPECT_EQ(rssm_commit_row(nullptr, &row, 0, &s), RSSM_NULL);
  EXPECT_EQ(rssm_commit_row(plan_.get(), nullptr, 0, &s), RSSM_NULL);
  EXPECT_EQ(rssm_commit_row(plan_.get(), &row, 0, nullptr), RSSM_NULL);
  EXPECT_EQ(rssm_commit_sweep_row(plan_.get(), nullptr, &s), RSSM_NULL);
}

TEST_F(CapiCommit, SweepsCommitAll) {
  rssm_sequence s = {17, 8, 5, 7};
  const rssm_row row = row_of(17, 8, 17, 30);
  EXPECT_EQ(rssm_commit_sweep_row(plan_.get(), &row, &s), RSSM_OK);
  expect_state(s, 47, 40, 6);
  EXPECT_EQ(rssm_commit_sweep_row(plan_.get(), &row, &s), RSSM_OUT_OF_RANGE);
}

TEST_F(CapiCommit, Batches) {
  std::vector<rssm_row> rows = {row_of(17, 8, 17, 3), row_of(17, 8, 17, 3), row_of(17, 8, 17, 3),
                                row_of(17, 16, 17, 3)};
  rows[2].read_slot = -1;
  const std::vector<int32_t> advance = {2, 4, 1, 3};
  const std::vector<rssm_sequence> before = {
      {17, 8, 5, 7}, {17, 8, 5, 7}, {17, 8, 5, 7}, {17, 16, 5, 7}};
  std::vector<rssm_sequence> sequences = before;
  int64_t refused = 10;
  rssm_commit_args args = {};
  args.size = sizeof(args);
  args.rows = rows.data();
  args.row_bytes = sizeof(rssm_row);
  args.n_rows = 4;
  args.advance = advance.data();
  args.sequences = sequences.data();
  args.n_refused = &refused;
  ASSERT_EQ(rssm_commit(plan_.get(), &args, nullptr), RSSM_OK);
  EXPECT_EQ(refused, 11);
  expect_state(sequences[0], 19, 16, 6);
  expect_state(sequences[1], 17, 8, 5);  // one past its window
  expect_state(sequences[2], 17, 8, 5);  // skipped
  expect_state(sequences[3], 20, 16, 5);

  sequences = before;
  args.is_sweep = 1;
  args.advance = nullptr;
  ASSERT_EQ(rssm_commit(plan_.get(), &args, nullptr), RSSM_OK);
  EXPECT_EQ(refused, 11);
  expect_state(sequences[1], 20, 16, 6);
  expect_state(sequences[2], 17, 8, 5);

  const auto refuses = [&](rssm_status status, auto change) {
    rssm_commit_args broken = args;
    change(broken);
    EXPECT_EQ(rssm_commit(plan_.get(), &broken, nullptr), status);
  };
  refuses(RSSM_BAD_SIZE, [](rssm_commit_args& a) { a.size = 0; });
  refuses(RSSM_BAD_SIZE, [](rssm_commit_args& a) { a.row_bytes = 52; });
  refuses(RSSM_OUT_OF_RANGE, [](rssm_commit_args& a) { a.n_rows = -1; });
  refuses(RSSM_NULL, [](rssm_commit_args& a) { a.rows = nullptr; });
  refuses(RSSM_NULL, [](rssm_commit_args& a) { a.is_sweep = 0; });
  refuses(RSSM_NULL, [](rssm_commit_args& a) { a.sequences = nullptr; });
  refuses(RSSM_NULL, [](rssm_commit_args& a) { a.n_refused = nullptr; });
  EXPECT_EQ(rssm_commit(nullptr, &args, nullptr), RSSM_NULL);
  EXPECT_EQ(rssm_commit(plan_.get(), nullptr, nullptr), RSSM_NULL);
}

}  // namespace
}  // namespace replayssm::test
