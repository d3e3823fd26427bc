// StateTraffic against a count by hand: S a checkpoint, r a ring row.
#include "runtime.h"

namespace replayssm {
namespace {

class Traffic : public testing::TestWithParam<Types> {
 protected:
  void start() {
    const auto options = options_of(GetParam(), 8, 4);
    engine_ = std::make_unique<Rig>(fixture(GetParam().fixture), options);
    sequence_ = engine_->runner().open();
    last_ = {};
  }

  // Runs a window of `size`; the traffic of this pass.
  StateTraffic pass(int64_t size, bool prefill, int32_t pending = 0) {
    Runner& runner = engine_->runner();
    const auto ids = random_ids(static_cast<size_t>(size), 1);
    Window window;
    window.sequence = sequence_;
    window.tokens = ids;
    window.prefill = prefill;
    window.pending = pending;
    runner.run({&window, 1});
    const StateTraffic now = runner.traffic(), before = last_;
    last_ = now;
    return {now.read - before.read, now.written - before.written, now.plain - before.plain};
  }
  void advance(int64_t count) { engine_->runner().advance(sequence_, count); }
  void expect(const StateTraffic& got, int64_t read, int64_t written, int64_t plain) {
    EXPECT_EQ(got.read, read);
    EXPECT_EQ(got.written, written);
    EXPECT_EQ(got.plain, plain);
  }

  std::unique_ptr<Rig> engine_;
  int32_t sequence_ = 0;
  StateTraffic last_;
};

TEST_P(Traffic, ReplayByHand) {
  start();
  const ModelMemory memory = engine_->runner().memory();
  const int64_t S = memory.checkpoint_slot, r = memory.ring_token;
  ASSERT_GT(S, 0);
  ASSERT_GT(r, 0);
  const auto prefill = [&](int64_t size) { return pass(size, true); };
  const auto step = [&](int64_t size, int32_t pending = 0) { return pass(size, false, pending); };

  expect(prefill(5), 0, 5 * r, 0);       // 0..5: no checkpoint yet
  expect(step(2), 5 * r, 2 * r, 3 * S);  // 5..7
  advance(2);
  expect(step(4), 7 * r, 4 * r, 5 * S);  // 7..11: crosses 8, its fold is not written
  advance(3);
  expect(step(1), 10 * r, r + S, 2 * S);  // 10: folds 0..8, then rows 8 and 9
  advance(1);
  expect(step(3), S + 3 * r, 3 * r, 4 * S);  // 11..14, all dropped
  advance(0);
  expect(step(1), S + 3 * r, r, 2 * S);
  expect(step(1, 1), S + 4 * r, r, 2 * S);  // pending row 11
  advance(2);
  // 13..25: rows 8..13 read, the checkpoint at 24 and row 24 written
  expect(prefill(12), S + 5 * r, S + r, 0);
  expect(prefill(3), S + r, 3 * r, 0);  // 25..28
  expect(prefill(4), S + 4 * r, S, 0);  // 28..32: ends on the grid, no row is left
  expect(step(1), S, r, 2 * S);         // 32
  advance(1);
  expect(step(4), S + r, 4 * r, 5 * S);  // 33..37
  advance(4);
  expect(step(4), S + 5 * r, 4 * r, 5 * S);  // 37..41
  advance(4);
  // 41: c = 32, a fold is pending; the prefill writes one checkpoint for it, passes none
  expect(prefill(2), S + 9 * r, 2 * r + S, 0);
}

// What generate() reports is what the runner counted after the prefill.
TEST_P(Traffic, GenerateReportsItsDecoding) {
  start();
  engine_->runner().close(sequence_);
  const auto prompt = random_ids(16, 2);
  GenerateParams params;
  params.max_new_tokens = 9;
  const ModelMemory memory = engine_->runner().memory();
  const Text text = text_of(*engine_, nullptr, prompt, params);
  // Eight steps at 16..24: the checkpoint each time, rows 16.. before, one row written.
  const StateTraffic& t = text.stats.decode_traffic;
  expect(t, 8 * memory.checkpoint_slot + 28 * memory.ring_token, 8 * memory.ring_token,
         16 * memory.checkpoint_slot);
}

INSTANTIATE_TEST_SUITE_P(Runtime, Traffic, testing::ValuesIn(all_types()),
                         [](const auto& info) { return types_name(info.param); });

}  // namespace
}  // namespace replayssm
