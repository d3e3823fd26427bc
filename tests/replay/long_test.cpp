// Long runs: a thousand folds with almost no decay, and long random schedules in the smallest ring.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cases.h"
#include "sequence.h"

namespace replayssm::test {
namespace {

class Long : public EachBackend {
 protected:
  ThreadPool pool_{1};
};

double relative_error(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, energy = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    energy += b[i] * b[i];
  }
  return std::sqrt(difference / energy);
}

// The state at each of 1,000 folds against the recurrence in double. With so little decay every
// rounding of the checkpoint stays: the bounds are those of docs/precision.md without decay, for a
// state that has been rounded a thousand times.
TEST_P(Long, AThousandFolds) {
  constexpr int kFolds = 1000;
  struct Dtypes {
    DType ring, checkpoint;
    double delta_bound, mamba_bound;
  };
  for (const Dtypes& d :
       {Dtypes{DType::kF32, DType::kF32, 5e-7, 2e-6}, Dtypes{DType::kF16, DType::kF16, 1e-3, 5e-3},
        Dtypes{DType::kF16, DType::kBF16, 6e-3, 3.5e-2},
        Dtypes{DType::kF16, DType::kI8, 1.6e-2, 1e-1}}) {
    for (Problem p : {problem_of(Family::kMamba2, 2, 1, 24, 20, 8, 8),
                      problem_of(Family::kGdn, 2, 1, 24, 20, 8, 8),
                      problem_of(Family::kKda, 1, 1, 24, 20, 8, 8)}) {
      p.ring = d.ring;
      p.checkpoint = d.checkpoint;
      p = backend().fit(p);
      if (!backend().takes(p)) continue;
      SCOPED_TRACE(name_of(p));
      double bound = p.family == Family::kMamba2 ? d.mamba_bound : d.delta_bound;
      // An int8 row's step is set by its largest value, which is further out in a longer row.
      if (p.checkpoint == DType::kI8 && p.key_dim > 20) bound *= 1.5;
      // A backend whose delta-rule ring is never wider than fp16.
      if (p.family != Family::kMamba2 && p.ring != d.ring) bound = std::max(bound, 1e-3);
      const int64_t b = p.grid.interval, n = kFolds * b;
      InputDistribution distribution;
      distribution.gate_mean = -9;  // decays of about 1 - 1e-4 a token
      const Inputs inputs(p, n, distribution);
      Layer layer(p, backend(), 3, pool_);
      Sequence sequence(layer, inputs, 1);
      ref::Recurrence exact(p, inputs.parameters());
      std::mt19937 rng(1);
      for (int fold = 1; fold <= kFolds; ++fold) {
        while (sequence.n() < fold * b) {
          const int limit = static_cast<int>(fold * b - sequence.n());
          const int t = 1 + static_cast<int>(rng() % limit);
          sequence.step(t, t);
        }
        sequence.fold_only();
        for (int64_t t = (fold - 1) * b; t < fold * b; ++t) exact.append(inputs.token(p, t));
        ASSERT_EQ(sequence.state.c, fold * b);
        const double error =
            relative_error(layer.state(sequence.state.checkpoint_slot), exact.state());
        ASSERT_LT(error, bound) << "fold " << fold;
      }
    }
  }
}

// Thousands of steps with rejections, drops and pending passes equal one sweep.
TEST_P(Long, RandomSchedules) {
  for (const Case& c : backend().core()) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int64_t n = 1500;
    InputDistribution distribution, other;
    other.seed = 2;
    const Inputs inputs(p, n + p.max_window, distribution), wrong(p, n + p.max_window, other);
    Layer swept(p, backend(), 3, pool_), layer(p, backend(), 3, pool_);
    Sequence whole(swept, inputs, 1), sequence(layer, inputs, 1);
    whole.sweep(n);
    std::mt19937 rng(2);
    while (sequence.n() < n) {
      sequence.in_place = rng() % 2 == 0;
      const int t = 1 + static_cast<int>(rng() % p.max_window);
      if (rng() % 3 == 0) sequence.step(t, 0, &wrong);
      const int pending = static_cast<int>(rng() % t);
      if (pending > 0) sequence.step(pending, 0);
      const std::vector<float> y = sequence.step(t - pending, 0, nullptr, pending);
      const int64_t at = sequence.n() + pending;
      if (at < n) {
        const std::vector<float>& expected = whole.trace.y.at(at);
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), y.begin())) << at;
      }
      const int n_accepted =
          std::min<int>(static_cast<int>(rng() % (t + 1)), static_cast<int>(n - sequence.n()));
      if (n_accepted > 0) sequence.step(n_accepted, n_accepted);
    }
    sequence.fold_only();
    expect_same(sequence.trace, whole.trace, n);
  }
}

REPLAYSSM_EACH_BACKEND(Long);

}  // namespace
}  // namespace replayssm::test
