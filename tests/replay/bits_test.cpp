// The grid's promise: y, the checkpoints and the ring rows are pure functions of the tokens. Every
// way to cut a sequence into windows and sweeps, any number of threads and any batch gives the same
// bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "cases.h"
#include "sequence.h"

namespace replayssm::test {
namespace {

class Bits : public EachBackend {
 protected:
  ThreadPool pool_{1};
};

constexpr int kSlot = 1;

// Ring rows of the committed tokens from g(n) on.
std::vector<uint8_t> live_rows(const Layer& layer, const SequenceState& state) {
  std::vector<uint8_t> out;
  for (int64_t t = layer.problem().grid.checkpoint_of(state.n); t < state.n; ++t) {
    const std::vector<uint8_t> row = layer.ring_bytes(state.ring_slot, t);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

struct Outcome {
  Trace trace;
  std::vector<uint8_t> rows;
};

// Runs `drive` over a new layer and sequence, then folds what is pending.
template <typename Drive>
Outcome run_of(const Problem& p, const Backend& backend, ThreadPool& pool, const Inputs& inputs,
               const Drive& drive) {
  Layer layer(p, backend, kSlot + 2, pool);
  Sequence sequence(layer, inputs, kSlot);
  drive(sequence);
  sequence.fold_only();
  return {sequence.trace, live_rows(layer, sequence.state)};
}

void expect_same(const Outcome& a, const Outcome& b, int64_t n) {
  expect_same(a.trace, b.trace, n);
  ASSERT_TRUE(a.rows == b.rows) << "ring rows differ";
}

std::vector<Case> all_cases(const Backend& backend) {
  std::vector<Case> cases = backend.shapes();
  for (const Case& c : backend.core()) cases.push_back(c);
  return cases;
}

TEST_P(Bits, WindowsOfEverySizeAndRandomWindows) {
  for (const Case& c : all_cases(backend())) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int64_t n = 2 * p.grid.interval + 7;
    const Inputs inputs(p, n, {});
    const Outcome one =
        run_of(p, backend(), pool_, inputs, [&](Sequence& s) { s.decode_to(n, 1); });
    ASSERT_EQ(one.trace.states.size(), 2u);
    for (int window = 2; window <= p.max_window; ++window) {
      if (window > 5 && window < p.max_window - 1) continue;
      SCOPED_TRACE(window);
      expect_same(one,
                  run_of(p, backend(), pool_, inputs, [&](Sequence& s) { s.decode_to(n, window); }),
                  n);
    }
    std::mt19937 rng(5);
    expect_same(one,
                run_of(p, backend(), pool_, inputs,
                       [&](Sequence& s) {
                         while (s.n() < n) {
                           s.in_place = rng() % 2 == 0;
                           s.decode_to(std::min<int64_t>(n, s.n() + 1 + rng() % p.max_window),
                                       p.max_window);
                           if (rng() % 4 == 0) s.fold_only();
                         }
                       }),
                n);
  }
}

TEST_P(Bits, SweepAndSweepsCutAnywhere) {
  for (const Case& c : all_cases(backend())) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int b = p.grid.interval;
    const int64_t n = 3 * b + 3;
    const Inputs inputs(p, n, {});
    const Outcome one =
        run_of(p, backend(), pool_, inputs, [&](Sequence& s) { s.decode_to(n, 1); });
    expect_same(one, run_of(p, backend(), pool_, inputs, [&](Sequence& s) { s.sweep(n); }), n);
    // Two cuts, the second at random: one token, at a grid point and round it, T_max and one more.
    std::mt19937 rng(6);
    for (int64_t cut : {1, b - 1, b, b + 1, 2 * b, p.max_window, p.max_window + 1}) {
      SCOPED_TRACE(cut);
      const int64_t second = cut + 1 + rng() % (n - cut);
      expect_same(one,
                  run_of(p, backend(), pool_, inputs,
                         [&](Sequence& s) {
                           s.sweep(cut);
                           s.in_place = true;
                           s.sweep(second - cut);
                           if (second < n) s.sweep(n - second);
                         }),
                  n);
    }
    // Prefill, decode a little, then more prefill (a second turn), with the last chunk of one
    // token.
    expect_same(one,
                run_of(p, backend(), pool_, inputs,
                       [&](Sequence& s) {
                         s.sweep(b - 1);
                         s.decode_to(b + 2, p.max_window);
                         s.sweep(n - 1 - s.n());
                         s.sweep(1);
                       }),
                n);
  }
}

// Every prompt length round two grid points, each then decoded on.
TEST_P(Bits, EveryPromptLength) {
  for (const Case& c : backend().core()) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int64_t n = 2 * p.grid.interval + 3;
    const Inputs inputs(p, n + 2, {});
    const Outcome one =
        run_of(p, backend(), pool_, inputs, [&](Sequence& s) { s.decode_to(n + 2, 1); });
    for (int64_t length = 1; length <= n; ++length) {
      SCOPED_TRACE(length);
      const Outcome swept = run_of(p, backend(), pool_, inputs, [&](Sequence& s) {
        s.sweep(length);
        s.decode_to(length + 2, p.max_window);
      });
      expect_same(swept.trace, one.trace, length + 2);
    }
  }
}

TEST_P(Bits, ThreadsAndRepeats) {
  for (const Case& c : backend().core()) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int64_t n = 2 * p.grid.interval + 5;
    const Inputs inputs(p, n, {});
    const auto drive = [&](Sequence& s) {
      s.sweep(p.grid.interval + 2);
      s.decode_to(n, p.max_window);
    };
    ThreadPool single(1), two(2), many(5);
    const Outcome one = run_of(p, backend(), single, inputs, drive);
    expect_same(one, run_of(p, backend(), many, inputs, drive), n);
    for (int repeat = 0; repeat < 20; ++repeat) {
      expect_same(one, run_of(p, backend(), two, inputs, drive), n);
    }
  }
}

// Sequences of many lengths share batches in random order, with sparse slots and skipped rows among
// them; each equals itself alone.
TEST_P(Bits, BatchMatesDoNotMatter) {
  constexpr int kSequences = 7;
  for (const Case& c : backend().core()) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    std::mt19937 rng(8);
    std::vector<Inputs> inputs;
    for (uint64_t i = 0; i < kSequences; ++i) {
      InputDistribution distribution;
      distribution.seed = 20 + i;
      inputs.emplace_back(p, 300, distribution);
    }
    ThreadPool two(2);
    Layer layer(p, backend(), 4 * kSequences + 2, two);
    std::vector<int> slots(kSequences);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), rng);
    std::vector<Sequence> sequences;
    for (int i = 0; i < kSequences; ++i) sequences.emplace_back(layer, inputs[i], 4 * slots[i] + 1);
    // Prompts of 1, 4, 7, .. tokens in one sweep, then steps with some rejected.
    const auto batch = [&](bool sweep, const auto& window_of, const auto& advance_of) {
      std::vector<int> order(kSequences);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), rng);
      std::vector<Work> work;
      for (int i : order) {
        work.push_back({sequences[i].row(window_of(i)), &inputs[i]});
        if (rng() % 3 == 0) {  // a padding row: every slot of it may be anything
          work.push_back({work.back().row, &inputs[i]});
          work.back().row.read_slot = -1;
        }
      }
      const std::vector<std::vector<float>> y = layer.run(work, sweep);
      for (size_t r = 0, i = 0; r < work.size(); ++r) {
        if (work[r].row.read_slot < 0) continue;
        Sequence& s = sequences[order[i++]];
        s.finish(work[r].row, advance_of(work[r].row.n_tokens), y[r], sweep);
      }
    };
    batch(true, [](int i) { return 1 + 3 * i; }, [](int t) { return t; });
    for (int step = 0; step < 12; ++step) {
      batch(
          false, [&](int) { return static_cast<int>(rng() % (p.max_window + 1)); },
          [&](int t) { return t == 0 ? 0 : static_cast<int>(rng() % (t + 1)); });
    }
    for (int i = 0; i < kSequences; ++i) {
      SCOPED_TRACE(i);
      const Outcome alone = run_of(p, backend(), pool_, inputs[i],
                                   [&](Sequence& s) { s.decode_to(sequences[i].n(), 1); });
      expect_same(sequences[i].trace, alone.trace, sequences[i].n());
    }
    // Slots that nobody owned are as they were.
    for (int slot = 0; slot < 4 * kSequences + 2; ++slot) {
      if (slot % 4 == 1 || slot % 4 == 2) continue;
      for (uint8_t byte : layer.slot_bytes(slot)) ASSERT_EQ(byte, 0xff) << "slot " << slot;
    }
  }
}

REPLAYSSM_EACH_BACKEND(Bits);

}  // namespace
}  // namespace replayssm::test
