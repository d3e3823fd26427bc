// NaN and infinities in drafts, fp16 saturation.
#include <gtest/gtest.h>

#include "cases.h"
#include "sequence.h"

namespace replayssm::test {
namespace {

class Hostile : public EachBackend {
 protected:
  ThreadPool pool_{1};
};

// A bad draft reaches no earlier token of its window; rejected, it reaches nothing at all.
TEST_P(Hostile, ABadDraftStaysWhereItIs) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(), 1e38f};
  for (const Case& c : backend().core()) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int window = p.max_window;
    const int64_t n = p.grid.interval + 2 * window;
    const Inputs inputs(p, n + window, distribution_of(1));
    Layer plain(p, backend(), 3, pool_);
    Sequence never(plain, inputs, 1);
    never.decode_to(n + window, 1);
    for (int field = 0; field < (p.family == Family::kMamba2 ? 4 : 5); ++field) {
      for (float value : bad) {
        SCOPED_TRACE(std::to_string(field) + " " + std::to_string(value));
        Layer layer(p, backend(), 3, pool_);
        Sequence sequence(layer, inputs, 1);
        // The first window lies in an interval, the second crosses a grid point.
        sequence.decode_to(p.grid.interval - window - 1, 1);
        while (sequence.n() < n) {
          const int late = window - 1 - static_cast<int>(sequence.n() % 2);
          const int64_t t = sequence.n() + late;
          Inputs poisoned = inputs;
          const auto fill = [&](std::vector<float>& x, int64_t size) {
            std::fill_n(x.begin() + t * size, size, value);
          };
          if (field == 0) fill(poisoned.query, p.n_key_heads * p.key_dim);
          if (field == 1) fill(poisoned.key, p.n_key_heads * p.key_dim);
          if (field == 2) fill(poisoned.value, layer.y_size());
          if (field == 3) fill(poisoned.gate, poisoned.n_gates);
          if (field == 4) fill(poisoned.beta, p.n_heads);
          sequence.step(window, late, &poisoned);
          sequence.step(1, 1);
        }
        sequence.decode_to(n + window, window);
        expect_same(sequence.trace, never.trace, n);
      }
    }
  }
}

// A NaN that was committed is not washed out by any checkpoint.
TEST_P(Hostile, ACommittedNanStaysVisible) {
  for (DType checkpoint : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
      const Problem p = backend().fit(with_dtypes(problem_of(Family::kGdn, 2, 1, 24, 20, 8, 1),
                                                  DType::kF32, DType::kF32, checkpoint));
      if (!backend().takes(p)) continue;
      SCOPED_TRACE(name_of(p));
      const int64_t b = p.grid.interval;
      Inputs inputs(p, 2 * b + 1, distribution_of(1));
      Layer layer(p, backend(), 3, pool_);
      inputs.value[3 * layer.y_size() + 5] = bad;  // head 0, value row 5
      Sequence sequence(layer, inputs, 1);
      sequence.decode_to(2 * b + 1, 1);
      const std::vector<float>& state = sequence.trace.states.at(b);
      for (int64_t row = 0; row < layer.y_size(); ++row) {
        for (int k = 0; k < p.key_dim; ++k) {
          const bool finite = std::isfinite(state[row * p.key_dim + k]);
          EXPECT_EQ(finite, row != 5 || !std::isnan(bad)) << row << " " << k;
        }
      }
      EXPECT_EQ(std::isnan(sequence.trace.y.at(2 * b)[5]), std::isnan(bad));
    }
  }
}

int64_t count_largest(const std::vector<float>& x) {
  return std::count_if(x.begin(), x.end(), [](float v) { return std::fabs(v) == kHalfMax; });
}

// Values past 65504 saturate in an fp16 ring, stay finite, and are counted once: by token, by
// window and by sweep alike, however many units of work share a key head.
TEST_P(Hostile, RingSaturation) {
  for (Problem p : {problem_of(Family::kMamba2, 12, 1, 24, 20, 8, 5),
                    problem_of(Family::kMamba2, 6, 2, 40, 20, 16, 8),
                    problem_of(Family::kGdn, 12, 2, 24, 20, 8, 5),
                    problem_of(Family::kKda, 2, 2, 24, 20, 8, 5)}) {
    p.ring = DType::kF16;
    p = backend().fit(p);
    if (p.ring != DType::kF16) continue;  // its ring cannot saturate
    if (!backend().takes(p)) continue;
    SCOPED_TRACE(name_of(p));
    const int64_t n = 3 * p.grid.interval + 2;
    Inputs inputs(p, n, distribution_of(1, 1e6f));
    if (p.family == Family::kMamba2) {
      for (size_t i = 0; i < inputs.key.size(); i += 7) inputs.key[i] = 1e6f;
    }
    int64_t expected = 0;
    Layer tokens(p, backend(), 3, pool_);
    Sequence one(tokens, inputs, 1);
    while (one.n() < n) {
      one.step(1, 1);
      // The row just written: values past the range are held as +-65504.
      const std::vector<uint8_t> row = tokens.ring_bytes(1, one.n() - 1);
      std::vector<float> values(tokens.y_size() + p.n_key_heads * p.key_dim);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = read_typed(DType::kF16, row.data(), static_cast<int64_t>(i));
      }
      expected += count_largest(values);
      ASSERT_EQ(tokens.saturated(), expected);
    }
    EXPECT_GT(expected, 20);
    for (const auto& [t, y] : one.trace.y) {
      for (float v : y) ASSERT_TRUE(std::isfinite(v));
    }
    for (int way = 0; way < 2; ++way) {
      Layer layer(p, backend(), 3, pool_);
      Sequence sequence(layer, inputs, 1);
      if (way == 0) {
        sequence.decode_to(n, p.max_window);
      } else {
        sequence.sweep(n);
      }
      EXPECT_EQ(layer.saturated(), expected) << (way == 0 ? "windows" : "sweep");
      expect_same(sequence.trace, one.trace, n);
    }
  }
}

// Checkpoint values past 65504 saturate and are counted once, when their fold is written, however
// often windows across the grid point had folded on chip before.
TEST_P(Hostile, CheckpointSaturation) {
  for (Problem p : {problem_of(Family::kMamba2, 4, 2, 24, 20, 8, 8),
                    problem_of(Family::kGdn, 4, 2, 24, 20, 8, 8),
                    problem_of(Family::kKda, 2, 2, 24, 20, 8, 8)}) {
    p.checkpoint = DType::kF16;
    p = backend().fit(p);
    if (p.ring == DType::kF16) continue;  // the ring's own saturation would be counted beside
    if (!backend().takes(p)) continue;
    SCOPED_TRACE(name_of(p));
    const int64_t n = 4 * p.grid.interval;
    const Inputs inputs(p, n + 8, distribution_of(1, 1.5e5f));
    Layer tokens(p, backend(), 3, pool_);
    Sequence one(tokens, inputs, 1);
    one.decode_to(n, 1);
    one.fold_only();
    int64_t expected = 0;
    for (const auto& [c, state] : one.trace.states) {
      expected += count_largest(state);
      for (float v : state) ASSERT_TRUE(std::isfinite(v));
    }
    // A value that rounds to 65504 from below is among `expected`, but did not saturate.
    const int64_t saturated = tokens.saturated();
    EXPECT_GT(saturated, 20);
    EXPECT_LE(saturated, expected);
    EXPECT_GE(saturated, expected - expected / 1000);
    for (int way = 0; way < 3; ++way) {
      Layer layer(p, backend(), 3, pool_);
      Sequence sequence(layer, inputs, 1);
      if (way == 0) {
        sequence.sweep(n);
      } else {
        while (sequence.n() < n) {
          sequence.step(8, way == 1 ? 3 : 0);  // crosses, mostly rejected
          if (way == 2) sequence.step(1, 1);
        }
        ASSERT_GE(sequence.n(), n);
      }
      sequence.fold_only();
      ASSERT_EQ(sequence.state.c, n);
      EXPECT_EQ(layer.saturated(), saturated) << way;
    }
  }
}

REPLAYSSM_EACH_BACKEND(Hostile);

}  // namespace
}  // namespace replayssm::test
