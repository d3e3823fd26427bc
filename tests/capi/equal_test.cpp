// The C interface gives the bits of the library's own plans.
#include <gtest/gtest.h>

#include "../replay/backend_cpu.h"
#include "../replay/sequence.h"
#include "capi_backend.h"

namespace replayssm::test {
namespace {

struct Outcome {
  Trace trace;
  int64_t saturated;
  std::vector<uint8_t> checkpoint, scale, ring_value, ring_key, ring_gate;
};

// A prompt, then windows of which some or no tokens are accepted, and folds.
Outcome run(const Backend& backend, const Problem& p, float value_scale, int n_threads) {
  ThreadPool pool(n_threads);
  const int64_t n = 3 * p.grid.interval + 3;
  const Inputs inputs(p, n + p.max_window, distribution_of(1, value_scale));
  const Inputs wrong(p, n + p.max_window, distribution_of(2, value_scale));
  Layer layer(p, backend, 4, pool);
  Sequence sequence(layer, inputs, 1);
  sequence.sweep(p.grid.interval + 2);
  std::mt19937 rng(1);
  while (sequence.n() < n) {
    const int t = 1 + static_cast<int>(rng() % p.max_window);
    if (rng() % 3 == 0) sequence.step(t, 0, &wrong);
    if (rng() % 4 == 0) sequence.fold_only();
    sequence.step(
        t, std::min<int>(1 + static_cast<int>(rng() % t), static_cast<int>(n - sequence.n())));
  }
  sequence.fold_only();
  return {sequence.trace,         layer.saturated(),    layer.checkpoint.bytes, layer.scale.bytes,
          layer.ring_value.bytes, layer.ring_key.bytes, layer.ring_gate.bytes};
}

void expect_equal(const Problem& p, float value_scale) {
  SCOPED_TRACE(name_of(p));
  const Outcome plan = run(cpu_backend(best_isa()), p, value_scale, 1);
  for (const int n_threads : {1, 3}) {
    const Outcome capi = run(capi_backend(), p, value_scale, n_threads);
    expect_same(plan.trace, capi.trace, 3 * p.grid.interval + 3);
    EXPECT_EQ(plan.trace.states, capi.trace.states);
    EXPECT_EQ(plan.saturated, capi.saturated);
    EXPECT_TRUE(plan.checkpoint == capi.checkpoint && plan.scale == capi.scale &&
                plan.ring_value == capi.ring_value && plan.ring_key == capi.ring_key &&
                plan.ring_gate == capi.ring_gate);
    EXPECT_EQ(capi.saturated > 0, value_scale > 1);
  }
}

TEST(CapiEqual, Shapes) {
  for (const Case& c : shape_cases()) expect_equal(c.problem, 1.0f);
}

TEST(CapiEqual, Dtypes) {
  for (const Case& c : dtype_cases()) expect_equal(c.problem, 1.0f);
}

TEST(CapiEqual, SaturationIsCounted) {
  for (Family family : {Family::kMamba2, Family::kGdn, Family::kKda}) {
    expect_equal(
        with_dtypes(problem_of(family, 2, 2, 24, 20, 8, 4), DType::kF32, DType::kF16, DType::kF16),
        1e6f);
  }
}

TEST(CapiEqual, ExportedStateImportsExactly) {
  ThreadPool pool(1);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    const Problem p =
        with_dtypes(problem_of(Family::kGdn, 3, 1, 40, 36, 16, 1), DType::kF32, DType::kF32, dtype);
    SCOPED_TRACE(name_of(p));
    Layer capi(p, capi_backend(), 3, pool), plan(p, cpu_backend(best_isa()), 3, pool);
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    std::vector<float> state(capi.y_size() * p.key_dim);
    for (float& x : state) x = normal(rng);
    capi.set_state(1, state);
    plan.set_state(1, state);
    EXPECT_EQ(capi.slot_bytes(1), plan.slot_bytes(1));
    const std::vector<float> once = capi.state(1);
    EXPECT_TRUE(same_bits(once, plan.state(1)));
    capi.set_state(2, once);
    EXPECT_EQ(capi.slot_bytes(1), capi.slot_bytes(2));
    EXPECT_EQ(same_bits(once, state), dtype == DType::kF32);
  }
}

}  // namespace
}  // namespace replayssm::test
