// The scheduler over memory that checks every read.
#include "runtime/scheduler.h"

#include <gtest/gtest.h>

#include <random>

#include "fake_executor.h"

namespace replayssm {
namespace {

class RandomDice final : public Dice {
 public:
  explicit RandomDice(uint64_t seed) : rng_(seed) {}
  uint32_t roll(uint32_t sides) override { return static_cast<uint32_t>(rng_() % sides); }

 private:
  std::mt19937_64 rng_;
};

TEST(Scheduler, RandomTracesReadWhatWasWritten) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomDice dice(seed);
    run_trace(dice, 120);
  }
}

SchedulerOptions roomy() {
  SchedulerOptions o;
  o.grid.interval = 8;
  o.max_window = 4;
  o.grid.ring_rows = Grid::rows_for(8, 4);
  o.max_positions = 512;
  o.max_sequences = 6;
  o.pools = {40, 6, 400};
  o.chunk_tokens = 64;
  o.score_tokens = 64;
  o.prefix_cache = false;
  o.cuts = {8, 32, {}};
  o.poison = true;
  return o;
}

SequenceSpec text_of(size_t length, int64_t more) {
  SequenceSpec spec;
  spec.tokens.assign(length, 1);
  spec.max_length = static_cast<int64_t>(length) + more;
  return spec;
}

// Commits a plan as a model would that always says 1.
void run(Scheduler& scheduler, const StepPlan& plan) {
  StepResult result;
  for (const StepRow& row : plan.rows) {
    RowResult r;
    r.n_tokens = r.n_commit = row.row.n_tokens;
    if (row.ends_text) {
      const Sequence& s = *scheduler.find(row.key);
      const bool last = s.length() + 1 >= s.spec.max_length;
      r.choices.assign(static_cast<size_t>(s.spec.n_choices), {{1}, last});
    }
    result.rows.push_back(std::move(r));
  }
  scheduler.commit(plan, result);
}

TEST(Scheduler, ChunksEndAtAbsolutePositionsWhateverTheBatch) {
  for (const int others : {0, 1, 4}) {
    Scheduler scheduler(roomy());
    for (int i = 0; i < others; ++i) {
      scheduler.add(static_cast<uint64_t>(i + 1), text_of(5 + 7 * static_cast<size_t>(i), 200));
    }
    scheduler.add(99, text_of(203, 4));
    std::vector<int64_t> ends;
    while (scheduler.find({99, 0}) != nullptr) {
      const StepPlan plan = scheduler.plan();
      for (const StepRow& row : plan.rows) {
        if (row.key.request != 99 || row.phase != Phase::kSweep) continue;
        ends.push_back(row.row.start + row.row.n_tokens);
      }
      run(scheduler, plan);
    }
    EXPECT_EQ(ends, (std::vector<int64_t>{64, 128, 192, 203})) << others;
  }
}

TEST(Scheduler, DecodingTextsRunInEveryStepOfAPrefill) {
  Scheduler scheduler(roomy());
  for (uint64_t i = 1; i <= 3; ++i) scheduler.add(i, text_of(1, 100));
  run(scheduler, scheduler.plan());
  scheduler.add(4, text_of(400, 4));
  for (int step = 0; step < 5; ++step) {
    const StepPlan plan = scheduler.plan();
    ASSERT_EQ(plan.rows.size(), 4u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(plan.rows[i].phase, Phase::kStep);
    EXPECT_EQ(plan.rows[3].row.n_tokens, 64);
    run(scheduler, plan);
  }
}

TEST(Scheduler, PrefillsTakeTurns) {
  Scheduler scheduler(roomy());
  for (uint64_t i = 1; i <= 3; ++i) scheduler.add(i, text_of(300, 4));
  std::vector<uint64_t> order;
  for (int step = 0; step < 6; ++step) {
    const StepPlan plan = scheduler.plan();
    ASSERT_EQ(plan.rows.size(), 1u);
    order.push_back(plan.rows[0].key.request);
    run(scheduler, plan);
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 2, 3, 1, 2, 3}));
}

TEST(Scheduler, RequestsAreAdmittedAsTheyCame) {
  Scheduler scheduler(roomy());
  for (uint64_t i = 1; i <= 20; ++i) scheduler.add(i, text_of(30, 20));
  std::vector<uint64_t> order;
  std::set<uint64_t> seen;
  while (!scheduler.idle()) {
    const StepPlan plan = scheduler.plan();
    for (const StepRow& row : plan.rows) {
      if (seen.insert(row.key.request).second) order.push_back(row.key.request);
    }
    run(scheduler, plan);
  }
  EXPECT_EQ(order.size(), 20u);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

// The same inputs give the same plans.
TEST(Scheduler, IsAFunctionOfItsInputs) {
  const auto trace = [] {
    Scheduler scheduler(roomy());
    std::vector<int64_t> out;
    for (uint64_t i = 1; i <= 9; ++i) {
      SequenceSpec spec = text_of(40 * i, 30);
      spec.max_drafts = 3;
      spec.adaptive = true;
      scheduler.add(i, std::move(spec));
    }
    while (!scheduler.idle()) {
      const StepPlan plan = scheduler.plan();
      for (const StepRow& row : plan.rows) {
        for (const int64_t value :
             {static_cast<int64_t>(row.key.request), row.row.start, int64_t{row.row.n_tokens},
              int64_t{row.row.write_slot}, int64_t{row.row.ring_slot}, int64_t{row.max_drafts}}) {
          out.push_back(value);
        }
        out.insert(out.end(), row.pages.begin(), row.pages.end());
      }
      run(scheduler, plan);
    }
    return out;
  };
  EXPECT_EQ(trace(), trace());
}

// Two identical prompts at once: the second waits for the first one's snapshots.
TEST(Scheduler, TwinsAreComputedOnce) {
  SchedulerOptions options = roomy();
  options.prefix_cache = true;
  Scheduler scheduler(options);
  for (uint64_t i = 1; i <= 3; ++i) scheduler.add(i, text_of(200, 4));
  int64_t fed = 0;
  while (!scheduler.idle()) {
    const StepPlan plan = scheduler.plan();
    for (const StepRow& row : plan.rows) {
      if (row.phase == Phase::kSweep) fed += row.row.n_tokens;
    }
    run(scheduler, plan);
  }
  EXPECT_EQ(fed, 200 + 2 * 8);  // the last snapshot is at 192
}

// Who comes as a text ends goes on from the checkpoint that it leaves, though that is yet to fold.
TEST(Scheduler, WhatATextLeavesIsThereForTheNext) {
  SchedulerOptions options = roomy();
  options.prefix_cache = true;
  Scheduler scheduler(options);
  scheduler.add(1, text_of(46, 3));
  while (scheduler.find({1, 0})->length() < 49) run(scheduler, scheduler.plan());
  ASSERT_NE(scheduler.find({1, 0}), nullptr);  // its last fold is the next step's
  scheduler.add(2, text_of(50, 2));
  while (scheduler.find({2, 0})->length() == 50) run(scheduler, scheduler.plan());
  EXPECT_EQ(scheduler.find({2, 0})->cached_tokens, 48);
}

}  // namespace
}  // namespace replayssm
