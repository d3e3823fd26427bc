// Speculation: whatever was drafted and rejected, at whatever positions, leaves no trace.
#include <gtest/gtest.h>

#include "cases.h"
#include "sequence.h"

namespace replayssm::test {
namespace {

class Rollback : public EachBackend {
 protected:
  Trace plain(const Problem& p, const Inputs& inputs, int64_t n) {
    return plain_trace(p, backend(), inputs, n, pool_);
  }
  ThreadPool pool_{1};
};

// Windows whose first tokens are right and accepted, and the rest wrong and rejected.
TEST_P(Rollback, RejectedDraftsLeaveNoTrace) {
  std::vector<Case> cases = backend().core();
  for (const Case& c : backend().shapes()) cases.push_back(c);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int64_t n = 3 * p.grid.interval + 4;
    const Inputs inputs(p, n + p.max_window, distribution_of(1)),
        wrong(p, n + p.max_window, distribution_of(2));
    const Trace expected = plain(p, inputs, n);
    for (uint64_t seed = 0; seed < 2; ++seed) {
      std::mt19937 rng(seed);
      Layer layer(p, backend(), 3, pool_);
      Sequence sequence(layer, inputs, 1);
      while (sequence.n() < n) {
        sequence.in_place = rng() % 2 == 0;
        const int t = 1 + static_cast<int>(rng() % p.max_window);
        switch (rng() % 4) {
          case 0:  // dropped: the fold is kept, no token is committed
            sequence.step(t, 0, &wrong);
            break;
          case 1:  // no drafts after an accept
            sequence.step(1, 1);
            break;
          default: {
            const int n_accepted = static_cast<int>(rng() % (t + 1));
            Inputs mixed = wrong;
            mixed.take(p, inputs, sequence.n(), sequence.n() + n_accepted);
            sequence.step(t, std::min<int>(n_accepted, static_cast<int>(n - sequence.n())), &mixed);
          }
        }
        if (rng() % 5 == 0) sequence.fold_only();
      }
      sequence.fold_only();
      ASSERT_EQ(sequence.trace.states.size(), 3u);
      expect_same(sequence.trace, expected, n);
    }
  }
}

// A drafter's passes: windows at start > n over pending rows, up to T_max past n, across grid
// points, then all, some or none of it is accepted.
TEST_P(Rollback, PendingWindows) {
  std::vector<Case> cases = backend().core();
  for (const Case& c : backend().shapes()) cases.push_back(c);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    if (p.max_window < 2) continue;
    const int64_t n = 3 * p.grid.interval + 4;
    const Inputs inputs(p, n + 2 * p.max_window, distribution_of(1)),
        wrong(p, n + 2 * p.max_window, distribution_of(2));
    const Trace expected = plain(p, inputs, n + p.max_window);
    std::mt19937 rng(4);
    Layer layer(p, backend(), 3, pool_);
    Sequence sequence(layer, inputs, 1);
    int64_t checked = 0;
    while (sequence.n() < n) {
      // Rejected passes first, then the right ones.
      for (const Inputs* pass : {&wrong, &inputs}) {
        int pending = 0;
        while (pending < p.max_window) {
          const int t = 1 + static_cast<int>(rng() % (p.max_window - pending));
          const std::vector<float> y = sequence.step(t, 0, pass, pending);
          for (int i = 0; i < t && pass == &inputs; ++i, ++checked) {
            const std::vector<float>& at = expected.y.at(sequence.n() + pending + i);
            ASSERT_EQ(0, std::memcmp(y.data() + i * layer.y_size(), at.data(), at.size() * 4))
                << "n " << sequence.n() << " pending " << pending << " + " << i;
          }
          pending += t;
        }
      }
      // Some of the pending rows are accepted: committed by the last pass over them.
      const int n_accepted = static_cast<int>(rng() % (p.max_window + 1));
      Row row = sequence.row(1, p.max_window - 1);
      row.c = sequence.state.c;
      ASSERT_EQ(commit_step(p.grid, row, n_accepted, sequence.state), Status::kOk);
    }
    sequence.fold_only();
    expect_same(sequence.trace, expected, 0);
    ASSERT_GE(sequence.trace.states.size(), 1u);
    ASSERT_GT(checked, n);
  }
}

// T = 0 writes the pending checkpoint, and nothing else moves.
TEST_P(Rollback, FoldOnly) {
  for (const Case& c : backend().core()) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const Inputs inputs(p, 2 * p.grid.interval, distribution_of(1));
    Layer layer(p, backend(), 3, pool_);
    Sequence sequence(layer, inputs, 1);
    sequence.fold_only();  // n = 0: nothing to fold
    EXPECT_EQ(sequence.state.c, 0);
    sequence.decode_to(p.grid.interval - 1, 1);
    sequence.fold_only();
    EXPECT_EQ(sequence.state.c, 0);
    EXPECT_TRUE(layer.checkpoint.is_poison(0, layer.checkpoint.bytes.size()));
    sequence.step(1, 1);
    EXPECT_EQ(sequence.state.c, 0);
    const std::vector<uint8_t> value = layer.ring_value.bytes, key = layer.ring_key.bytes,
                               gate = layer.ring_gate.bytes;
    sequence.fold_only();
    EXPECT_EQ(sequence.state.c, p.grid.interval);
    EXPECT_EQ(sequence.n(), p.grid.interval);
    EXPECT_TRUE(value == layer.ring_value.bytes && key == layer.ring_key.bytes &&
                gate == layer.ring_gate.bytes);
    const std::vector<uint8_t> pool = layer.checkpoint.bytes;
    sequence.fold_only();  // folding twice is folding once
    EXPECT_EQ(sequence.state.c, p.grid.interval);
    EXPECT_TRUE(pool == layer.checkpoint.bytes);
  }
}

REPLAYSSM_EACH_BACKEND(Rollback);

}  // namespace
}  // namespace replayssm::test
