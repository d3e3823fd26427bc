// The small parts that decide: cut points, how many drafts, what the cache evicts.
#include <gtest/gtest.h>

#include <set>

#include "runtime/cut_points.h"
#include "runtime/draft_policy.h"
#include "runtime/prefix_cache.h"

namespace replayssm {
namespace {

std::vector<int64_t> cuts(const CutRule& rule, const std::vector<int32_t>& tokens, int64_t to) {
  std::vector<int64_t> out;
  int64_t at = 0;
  while (const auto cut = next_cut(rule, tokens, at, to)) {
    at = *cut;
    out.push_back(at);
  }
  return out;
}

TEST(CutPoints, PowersOfTwoAndIntervalsRoundedDown) {
  const std::vector<int32_t> tokens(300, 1);
  EXPECT_EQ(cuts({16, 0, {}}, tokens, 300), (std::vector<int64_t>{16, 32, 64, 128, 256}));
  EXPECT_EQ(cuts({16, 100, {}}, tokens, 300),
            (std::vector<int64_t>{16, 32, 64, 96, 128, 192, 256, 288}));
  EXPECT_EQ(cuts({64, 64, {}}, tokens, 299), (std::vector<int64_t>{64, 128, 192, 256}));
  EXPECT_EQ(cuts({16, 3, {}}, tokens, 50), (std::vector<int64_t>{16, 32, 48}));
}

// By the definition, for every position.
TEST(CutPoints, AfterMessageEnds) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<int32_t> tokens;
    uint64_t state = seed;
    for (int i = 0; i < 200; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      tokens.push_back(static_cast<int32_t>((state >> 33) % 40));
    }
    const CutRule rule{8, 50, {5, 6}};
    std::set<int64_t> want;
    for (int64_t p = 1; p <= 207; ++p) {
      const bool message = p <= 200 && (tokens[static_cast<size_t>(p - 1)] == 5 ||
                                        tokens[static_cast<size_t>(p - 1)] == 6);
      if (message || (p & (p - 1)) == 0 || p % 50 == 0) want.insert(p / 8 * 8);
    }
    want.erase(0);
    const auto got = cuts(rule, tokens, 200);
    EXPECT_EQ(std::set<int64_t>(got.begin(), got.end()), want) << seed;
    EXPECT_EQ(got.size(), want.size());
  }
}

// A model whose step costs `fixed` and a token more `each`; drafts stand with the given rate.
int64_t drafts_of(double fixed, double each, double per_draft, int64_t of_ten_stand,
                  int64_t steps) {
  StepCost cost;
  DraftPolicy policy(5, true);
  int64_t total = 0, dice = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const int32_t k = policy.next(cost);
    int64_t stand = 0;
    while (stand < k && (dice++ * 7) % 10 < of_ten_stand) ++stand;
    policy.observe(k, stand);
    cost.observe(1 + k, fixed + each * static_cast<double>(1 + k), 1 + stand, k,
                 per_draft * static_cast<double>(k));
    if (step >= steps / 2) total += k;
  }
  return total;
}

TEST(DraftPolicy, DraftsWhereTheyPayAndNotWhereTheyLose) {
  // A step costs the same for one token as for six: all that may stand is worth it.
  EXPECT_GE(drafts_of(1, 0.001, 0, 9, 400), 5 * 200 * 9 / 10);
  // Each token costs as much as a step alone.
  EXPECT_LE(drafts_of(0.01, 1, 0, 5, 400), 200 / 10);
  // Nothing ever stands.
  EXPECT_LE(drafts_of(1, 0.05, 0.05, 0, 400), 200 / 10);
  // The drafter costs more than it saves.
  EXPECT_LE(drafts_of(1, 0, 2, 6, 400), 200 / 10);
}

TEST(DraftPolicy, TriesAgainAfterItWasOff) {
  StepCost cost;
  DraftPolicy policy(4, true);
  for (int i = 0; i < 200; ++i) {
    const int32_t k = policy.next(cost);
    policy.observe(k, 0);
    cost.observe(1 + k, 1 + 0.1 * k, 1, k, 0.1 * k);
  }
  int64_t drafted = 0;
  for (int i = 0; i < 1500; ++i) {
    const int32_t k = policy.next(cost);
    policy.observe(k, k);  // now all stand
    cost.observe(1 + k, 1 + 0.1 * k, 1 + k, k, 0.01 * k);
    drafted += k;
  }
  EXPECT_GT(drafted, 1500);
}

TEST(DraftPolicy, FixedWhenNotAdaptive) {
  StepCost cost;
  DraftPolicy policy(4, false);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(policy.next(cost), 4);
    policy.observe(4, 0);
    cost.observe(5, 5, 1, 4, 1);
  }
}

std::vector<int32_t> text(int32_t kind, int64_t n) {
  return std::vector<int32_t>(static_cast<size_t>(n), kind);
}

class Cache : public testing::Test {
 protected:
  // A text's own memory, given to the cache alone.
  void insert(const std::vector<int32_t>& tokens) {
    const int32_t slot = *slots_.take();
    std::vector<int32_t> pages;
    while (std::ssize(pages) * 16 < std::ssize(tokens)) pages.push_back(*pages_.take());
    cache_.insert(tokens, slot, pages);
    slots_.release(slot);
    for (const int32_t page : pages) pages_.release(page);
  }
  RefPool slots_{20};
  RefPool pages_{100};
  PrefixCache cache_{slots_, pages_, 1000, 10};
};

TEST_F(Cache, TextsShareThePagesOfTheirBeginning) {
  insert(text(1, 32));
  insert(text(1, 64));
  EXPECT_EQ(cache_.n_pages(), 4);
  EXPECT_EQ(pages_.n_free(), 96);
  auto other = text(1, 32);
  other.resize(48, 2);
  insert(other);
  EXPECT_EQ(cache_.n_pages(), 5);
  const auto hit = cache_.find(text(1, 60), 59);
  EXPECT_EQ(hit.position, 32);
  EXPECT_EQ(hit.matched, 60);
  EXPECT_EQ(hit.pages.size(), 2u);
}

TEST_F(Cache, FindsTheLongestThatLeavesTheLimit) {
  for (const int64_t n : {8, 16, 24, 40}) insert(text(1, n));
  for (int64_t limit = 0; limit < 50; ++limit) {
    const int64_t want = limit >= 40 ? 40 : limit >= 24 ? 24 : limit / 8 * 8;
    EXPECT_EQ(cache_.find(text(1, 50), limit).position, want) << limit;
  }
  EXPECT_EQ(cache_.find(text(2, 50), 50).position, 0);
  EXPECT_EQ(cache_.find(text(1, 7), 7).position, 0);
}

TEST_F(Cache, GivesUpWhatSavesLeastAndWasNotUsed) {
  insert(text(1, 160));
  insert(text(1, 168));  // saves 8 tokens more
  insert(text(2, 160));
  std::vector<int64_t> gone;
  const auto note = [&](const PrefixCache::Evicted& e) {
    gone.push_back(1000 * e.tokens[0] + std::ssize(e.tokens));
  };
  EXPECT_TRUE(cache_.evict(note));
  cache_.find(text(1, 161), 160);  // used
  EXPECT_TRUE(cache_.evict(note));
  EXPECT_TRUE(cache_.evict(note));
  EXPECT_FALSE(cache_.evict(note));
  EXPECT_EQ(gone, (std::vector<int64_t>{1168, 2160, 1160}));
  EXPECT_EQ(slots_.n_free(), 20);
  EXPECT_EQ(pages_.n_free(), 100);
}

}  // namespace
}  // namespace replayssm
