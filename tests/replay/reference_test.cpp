// Every backend against the double-precision reference: outputs, and the state at every fold.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cases.h"
#include "sequence.h"

namespace replayssm::test {
namespace {

class Reference : public EachBackend {};

struct Error {
  double nmse = 0;   // sum of squared differences over sum of squares
  double worst = 0;  // largest difference over (root mean square + the element itself)
};

Error error_of(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, energy = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    energy += b[i] * b[i];
  }
  const double rms = std::sqrt(energy / b.size());
  double worst = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    worst = std::max(worst, std::fabs(a[i] - b[i]) / (rms + std::fabs(b[i])));
  }
  return {difference / energy, worst};
}

Error operator+(const Error& a, const Error& b) { return {a.nmse + b.nmse, a.worst + b.worst}; }

// What the declared rounding points allow. GridReplay rounds at the same points, so only the order
// of fp32 sums differs from it and, rarely, a value near a rounding boundary falls on its other
// side. The recurrence rounds nowhere.
struct Bounds {
  Error y_grid, state_grid, y_exact, state_exact;
};

// By dtype: fp32, fp16, bf16, int8. A flip is a checkpoint's value rounded to the other side; one
// alone, of the largest in a bf16 checkpoint of 40,000 elements, makes an nmse of 1e-7.
constexpr Error kSums = {1e-12, 1e-5};
constexpr Error kRingFlips[] = {{}, {1e-9, 4e-3}, {1e-9, 4e-3}};
constexpr Error kCheckpointFlips[] = {{}, {2e-8, 2e-3}, {2e-7, 1e-2}, {2e-6, 5e-2}};
constexpr Error kRingRounding[] = {{}, {5e-7, 5e-3}, {3e-5, 3e-2}};
constexpr Error kCheckpointRounding[] = {{}, {3e-7, 3e-3}, {1e-5, 1e-2}, {2e-4, 6e-2}};
constexpr Error kOutputRounding[] = {{}, {}, {4e-6, 4e-3}};

// Scores in fp16 move a state by d = 1.4e-4 of itself in a fold, and a checkpoint with rounding
// steps of h (int8: a row's largest over 127, some 0.03 of the rms) by d h more in the mean square;
// three folds. One step of an int8 row may be a tenth of the rms. Queries in fp16 move outputs
// only.
constexpr Error kScoreRounding[] = {{6e-8, 4e-3}, {3e-7, 4e-3}, {2e-6, 1e-2}, {1.5e-5, 1e-1}};
constexpr Error kQueryRounding = {1.5e-7, 4e-3};

// Folds into int8 weigh their rows in 16 bits and hold their sums in fp16: d = 1.1e-3 of a state
// with Mamba-2's bf16, 2.8e-4 with the others' fp16; d h = 3.5e-5 and 8.4e-6 with h = 0.03 of the
// rms; three folds. int8 rounding itself is 7.5e-5 a fold.
constexpr Error kMambaFolds = {1e-4, 0}, kDeltaFolds = {2.5e-5, 0};

Bounds bounds_of(const Problem& p, bool rounds_scores) {
  const int ring = static_cast<int>(p.ring), checkpoint = static_cast<int>(p.checkpoint);
  const Error output = kOutputRounding[static_cast<int>(p.activation)];
  const bool scores_count = rounds_scores && p.family != Family::kMamba2;
  Error scores = scores_count ? kScoreRounding[checkpoint] : Error{};
  if (rounds_scores && p.checkpoint == DType::kI8) {
    scores = scores + (p.family == Family::kMamba2 ? kMambaFolds : kDeltaFolds);
  }
  Bounds b;
  b.state_grid = scores + kSums + kRingFlips[ring] + kCheckpointFlips[checkpoint];
  b.state_exact = scores + kSums + kRingRounding[ring] + kCheckpointRounding[checkpoint];
  // One step of an int8 row is its largest over 127: in a long row up to a tenth of the rms.
  if (p.checkpoint == DType::kI8 && p.key_dim >= 128) b.state_grid.worst += 5e-2;
  const bool queries_count = scores_count && p.activation == DType::kF32;
  const Error queries = queries_count ? kQueryRounding : Error{};
  b.y_grid = b.state_grid + queries + output;
  b.y_exact = b.state_exact + queries + output;
  return b;
}

void expect_within(const Error& error, const Error& bound, const char* what, int64_t at) {
  EXPECT_LT(error.nmse, bound.nmse) << what << " at " << at;
  EXPECT_LT(error.worst, bound.worst) << what << " at " << at;
}

// Three intervals and a few tokens in random windows; every stored checkpoint is compared.
void check_case(const Case& c, const Backend& backend, ThreadPool& pool,
                const InputDistribution& distribution) {
  SCOPED_TRACE(c.name + ", gates about e^" + std::to_string(distribution.gate_mean) +
               ", keys times " + std::to_string(distribution.key_scale));
  const Problem& p = c.problem;
  const int64_t n = 3 * p.grid.interval + 5;
  const Inputs inputs(p, n, distribution);
  Layer layer(p, backend, 4, pool);
  Sequence sequence(layer, inputs, 1);
  std::mt19937 rng(3);
  while (sequence.n() < n) {
    const int64_t limit = std::min<int64_t>(p.max_window, n - sequence.n());
    const int t = static_cast<int>(rng() % limit) + 1;
    sequence.step(t, t);
    if (sequence.n() % 3 == 0) sequence.fold_only();
  }
  sequence.fold_only();
  ASSERT_EQ(sequence.trace.states.size(), 3u);

  const Bounds bounds = bounds_of(p, backend.rounds_scores());
  ref::GridReplay grid(p, inputs.parameters());
  ref::Recurrence exact(p, inputs.parameters());
  std::vector<float> y;
  std::vector<double> y_grid, y_exact;
  for (int64_t t = 0; t < n; ++t) {
    const std::vector<float>& at = sequence.trace.y.at(t);
    y.insert(y.end(), at.begin(), at.end());
    for (double v : grid.append(inputs.token(p, t))) y_grid.push_back(v);
    for (double v : exact.append(inputs.token(p, t))) y_exact.push_back(v);
    if ((t + 1) % p.grid.interval != 0) continue;
    const std::vector<float>& state = sequence.trace.states.at(t + 1);
    expect_within(error_of(state, grid.checkpoint()), bounds.state_grid, "state and grid", t + 1);
    expect_within(error_of(state, exact.state()), bounds.state_exact, "state and exact", t + 1);
  }
  expect_within(error_of(y, y_grid), bounds.y_grid, "y and grid", n);
  expect_within(error_of(y, y_exact), bounds.y_exact, "y and exact", n);
}

TEST_P(Reference, Shapes) {
  ThreadPool pool(1);
  for (const Case& c : backend().shapes()) check_case(c, backend(), pool, {});
}

TEST_P(Reference, Dtypes) {
  ThreadPool pool(1);
  for (const Case& c : backend().dtypes()) check_case(c, backend(), pool, {});
}

TEST_P(Reference, DecayFromNoneToStrong) {
  ThreadPool pool(1);
  for (const Case& c : backend().core()) {
    for (double gate_mean : {-9.0, -4.0, 1.0, 3.0}) {
      check_case(c, backend(), pool, {.gate_mean = gate_mean});
    }
  }
}

// Rows of int8 are rounded in steps of their own: small and large keys must keep as many bits, and
// keys of zero leave a state of zero.
TEST_P(Reference, KeysOfAnySize) {
  ThreadPool pool(1);
  for (const Case& c : backend().dtypes()) {
    const Problem& p = c.problem;
    if (p.checkpoint != DType::kI8) continue;
    const bool raw = p.family == Family::kMamba2;
    for (float scale : raw ? std::vector<float>{1e-3f, 1e-2f, 300.0f} : std::vector<float>{1e-6f}) {
      check_case(c, backend(), pool, {.key_scale = scale});
    }
    const int64_t n = p.grid.interval;
    const Inputs inputs(p, n, {.key_scale = 0});
    Layer layer(p, backend(), 3, pool);
    Sequence sequence(layer, inputs, 1);
    sequence.decode_to(n, p.max_window);
    sequence.fold_only();
    for (float x : sequence.trace.states.at(n)) ASSERT_EQ(x, 0.0f) << c.name;
  }
}

// A token that forgets nearly everything among tokens that forget little: what follows it must not
// lose its own decays in the large prefix sum.
TEST_P(Reference, DecayBursts) {
  ThreadPool pool(1);
  for (Problem p : {problem_of(Family::kMamba2, 2, 1, 24, 20, 64, 8),
                    problem_of(Family::kGdn, 2, 1, 24, 20, 64, 8),
                    problem_of(Family::kKda, 2, 2, 24, 20, 64, 8)}) {
    p = backend().fit(p);
    if (!backend().takes(p)) continue;
    for (float burst : {20.0f, 300.0f, 3000.0f}) {
      SCOPED_TRACE(name_of(p) + ", bursts of " + std::to_string(burst));
      const int64_t n = 2 * p.grid.interval + 20;
      Inputs inputs(p, n, {});
      std::mt19937 rng(1);
      for (float& g : inputs.gate) g = rng() % 5 == 0 ? burst : -6.0f;
      std::fill(inputs.dt_bias.begin(), inputs.dt_bias.end(), 0.0f);
      Layer layer(p, backend(), 3, pool);
      Sequence sequence(layer, inputs, 1);
      sequence.decode_to(n, p.max_window);
      ref::Recurrence exact(p, inputs.parameters());
      std::vector<float> y;
      std::vector<double> y_exact;
      for (int64_t t = 0; t < n; ++t) {
        const std::vector<float>& at = sequence.trace.y.at(t);
        y.insert(y.end(), at.begin(), at.end());
        for (double v : exact.append(inputs.token(p, t))) y_exact.push_back(v);
      }
      expect_within(error_of(y, y_exact), bounds_of(p, backend().rounds_scores()).y_exact,
                    "y and exact", n);
    }
  }
}

REPLAYSSM_EACH_BACKEND(Reference);

}  // namespace
}  // namespace replayssm::test
