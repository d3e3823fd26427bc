// Slots: folds to another slot, snapshots, restores, forks, reuse, padding rows; and NaN in every
// byte that a step has no business to read.
#include <gtest/gtest.h>

#include "cases.h"
#include "sequence.h"

namespace replayssm::test {
namespace {

class Slots : public EachBackend {
 protected:
  Trace plain(const Problem& p, const Inputs& inputs, int64_t n) {
    return plain_trace(p, backend(), inputs, n, pool_);
  }
  ThreadPool pool_{1};
};

// A fold to a fresh slot leaves the one it read as it was, and that one is a snapshot: restored at
// its grid point it needs no ring row, and one past it a single row.
TEST_P(Slots, ASnapshotIsTheSlotLeftBehind) {
  for (const Case& c : backend().core()) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int64_t b = p.grid.interval, n = 3 * b + 2;
    const Inputs inputs(p, n, distribution_of(1));
    const Trace expected = plain(p, inputs, n);
    Layer layer(p, backend(), 8, pool_);
    Sequence sequence(layer, inputs, 1);
    sequence.decode_to(2 * b, p.max_window);
    const int snapshot = sequence.state.checkpoint_slot;
    ASSERT_EQ(sequence.state.c, b);
    const std::vector<uint8_t> before = layer.slot_bytes(snapshot);
    sequence.fold_only();
    ASSERT_NE(sequence.state.checkpoint_slot, snapshot);
    EXPECT_TRUE(before == layer.slot_bytes(snapshot));

    for (int64_t past : {0, 1}) {
      SCOPED_TRACE(past);
      Sequence restored(layer, inputs, 5);
      restored.state = {b + past, b, snapshot, 5};
      layer.poison_ring(5);
      layer.copy_rows(1, 5, b, b + past);
      restored.decode_to(n, p.max_window);
      restored.fold_only();
      for (int64_t t = 0; t < b + past; ++t) restored.trace.y[t] = expected.y.at(t);
      expect_same(restored.trace, expected, n);
    }
    EXPECT_TRUE(before == layer.slot_bytes(snapshot));
  }
}

// Two continuations read one checkpoint, each with its own ring rows and its own slot to fold to.
TEST_P(Slots, ForksEqualSequencesThatNeverForked) {
  for (const Case& c : backend().core()) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int64_t b = p.grid.interval, n = 4 * b;
    // At a grid point with its fold pending, one past it, in the middle, one before the next.
    for (int64_t at : {2 * b, 2 * b + 1, 2 * b + b / 2, 3 * b - 1}) {
      SCOPED_TRACE(at);
      Inputs left(p, n, distribution_of(1)), right(p, n, distribution_of(2));
      right.take(p, left, 0, at);
      Layer layer(p, backend(), 12, pool_);
      Sequence parent(layer, left, 1);
      parent.decode_to(at, 1);
      Sequence fork_a(layer, left, 4), fork_b(layer, right, 8);
      for (Sequence* fork : {&fork_a, &fork_b}) {
        const int own_ring = fork->state.ring_slot;
        fork->state = parent.state;
        fork->state.ring_slot = own_ring;
        fork->trace.y = parent.trace.y;
        layer.copy_rows(parent.state.ring_slot, own_ring, parent.state.c, at);
      }
      const std::vector<uint8_t> shared = layer.slot_bytes(parent.state.checkpoint_slot);
      while (fork_a.n() < n || fork_b.n() < n) {  // side by side
        fork_a.decode_to(std::min(n, fork_a.n() + 3), p.max_window);
        fork_b.decode_to(std::min(n, fork_b.n() + 2), 1);
      }
      EXPECT_TRUE(shared == layer.slot_bytes(parent.state.checkpoint_slot));
      fork_a.fold_only();
      fork_b.fold_only();
      expect_same(fork_a.trace, plain(p, left, n), n);
      expect_same(fork_b.trace, plain(p, right, n), n);
      ASSERT_NE(fork_a.trace.states.at(n), fork_b.trace.states.at(n));
    }
  }
}

// Slots, rings and ring rows of a finished sequence are taken over as they are.
TEST_P(Slots, ReuseWithoutReset) {
  for (const Case& c : backend().core()) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int64_t n = 2 * p.grid.interval + 3;
    Layer layer(p, backend(), 3, pool_);
    for (uint64_t seed : {1, 2, 3}) {
      const Inputs inputs(p, n, distribution_of(seed));
      Sequence sequence(layer, inputs, 1);
      if (seed == 2) {
        sequence.sweep(n);
      } else {
        sequence.decode_to(n, p.max_window);
      }
      sequence.fold_only();
      expect_same(sequence.trace, plain(p, inputs, n), n);
    }
  }
}

// Before each step every byte that it may not read is NaN: other slots, the stored checkpoint while
// c is 0, ring rows that are neither to be folded nor of the current interval.
TEST_P(Slots, NothingElseIsRead) {
  std::vector<Case> cases = backend().core();
  for (const Case& c : backend().shapes()) cases.push_back(c);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int64_t n = 2 * p.grid.interval + 5;
    const Inputs inputs(p, n, distribution_of(1));
    const Trace expected = plain(p, inputs, n);
    std::mt19937 rng(9);
    Layer layer(p, backend(), 3, pool_);
    Sequence sequence(layer, inputs, 1);
    while (sequence.n() < n) {
      const SequenceState& s = sequence.state;
      for (int slot = 0; slot < 3; ++slot) {
        if (slot != s.checkpoint_slot || s.c == 0) layer.poison_slot(slot);
        if (slot != s.ring_slot) layer.poison_ring(slot);
      }
      layer.keep_only(s.ring_slot, s.c, s.n);
      const int limit = static_cast<int>(std::min<int64_t>(p.max_window, n - s.n));
      const int t = 1 + static_cast<int>(rng() % limit);
      if (rng() % 4 == 0) {
        sequence.sweep(t);
      } else {
        sequence.step(t, t);
      }
    }
    sequence.fold_only();
    expect_same(sequence.trace, expected, n);
  }
}

// A skipped row touches nothing, whatever its other fields say.
TEST_P(Slots, ASkippedRowTouchesNothing) {
  for (const Case& c : backend().core()) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const Inputs inputs(p, 4 * p.grid.interval, distribution_of(1));
    Layer layer(p, backend(), 3, pool_);
    Sequence sequence(layer, inputs, 1);
    sequence.decode_to(p.grid.interval + 2, 1);
    const Layer before = layer;
    Row live = sequence.row(2);
    live.c = 0;  // as if its fold were pending
    live.read_slot = -1;
    Row wild = live;
    wild.write_slot = wild.ring_slot = -1;
    wild.n = wild.start = 3 * p.grid.interval;
    for (bool sweep : {false, true}) {
      layer.run({{live, &inputs}, {wild, &inputs}}, sweep);  // checks that `out` is untouched
      EXPECT_TRUE(before.checkpoint.bytes == layer.checkpoint.bytes);
      EXPECT_TRUE(before.scale.bytes == layer.scale.bytes);
      EXPECT_TRUE(before.ring_value.bytes == layer.ring_value.bytes);
      EXPECT_TRUE(before.ring_key.bytes == layer.ring_key.bytes);
      EXPECT_TRUE(before.ring_gate.bytes == layer.ring_gate.bytes);
    }
  }
}

// A checkpoint exported, carried to another pool and imported there goes on with the same bits.
TEST_P(Slots, ExportedStateGoesOn) {
  for (const Case& c : backend().core()) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int64_t b = p.grid.interval, n = 3 * b + 1;
    const Inputs inputs(p, n, distribution_of(1));
    const Trace expected = plain(p, inputs, n);
    Layer layer(p, backend(), 3, pool_);
    layer.set_state(2, expected.states.at(b));
    EXPECT_TRUE(same_bits(layer.state(2), expected.states.at(b)));
    Sequence sequence(layer, inputs, 1);
    sequence.state = {b, b, 2, 1};
    sequence.decode_to(n, p.max_window);
    for (int64_t t = 0; t < b; ++t) sequence.trace.y[t] = expected.y.at(t);
    sequence.fold_only();
    expect_same(sequence.trace, expected, n);
  }
}

// Export after import of an exported state gives the same floats and bytes.
TEST_P(Slots, ImportOfAnExportIsExact) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    SCOPED_TRACE(dtype_name(dtype));
    const Problem p = backend().fit(with_dtypes(problem_of(Family::kGdn, 3, 1, 40, 36, 16, 1),
                                                DType::kF32, DType::kF32, dtype));
    if (!backend().takes(p)) continue;
    Layer layer(p, backend(), 3, pool_);
    std::mt19937 rng(10);
    std::normal_distribution<float> normal;
    for (float magnitude : {0.0f, 1e-43f, 1e-38f, 1e-30f, 1e-3f, 1.0f, 3.0f, 1e3f, 1e6f, 1e30f}) {
      SCOPED_TRACE(magnitude);
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<float> state(layer.y_size() * p.key_dim);
        for (float& x : state) x = magnitude * normal(rng);
        layer.set_state(1, state);
        const std::vector<float> once = layer.state(1);
        layer.set_state(2, once);
        ASSERT_TRUE(same_bits(once, layer.state(2)));
        ASSERT_TRUE(layer.slot_bytes(1) == layer.slot_bytes(2));
        if (dtype == DType::kF32) {
          ASSERT_TRUE(same_bits(once, state));
        }
        if (dtype == DType::kF16 && magnitude > 65504) continue;
        for (int64_t row = 0; row < layer.y_size(); ++row) {
          const float* x = state.data() + row * p.key_dim;
          float largest = 0;
          for (int k = 0; k < p.key_dim; ++k) largest = std::max(largest, std::fabs(x[k]));
          // Half a step of the row for int8, half a unit in the last place else.
          const float step = dtype == DType::kI8     ? largest / 254
                             : dtype == DType::kBF16 ? largest / 256
                                                     : largest / 2048;
          for (int k = 0; k < p.key_dim; ++k) {
            ASSERT_NEAR(once[row * p.key_dim + k], x[k], 1.0001f * step + 3e-8f);
          }
        }
      }
    }
  }
}

REPLAYSSM_EACH_BACKEND(Slots);

}  // namespace
}  // namespace replayssm::test
