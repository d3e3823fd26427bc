// A short life of a sequence for every entry of the instance tables and the general kernel: what
// tools/gpu_sanitize.sh runs under the sanitizers.
#include <gtest/gtest.h>

#include "../replay/sequence.h"
#include "cuda_backend.h"
#include "cuda_cases.h"

namespace replayssm::test {
namespace {

class EveryKernel : public testing::TestWithParam<Case> {};

// Single tokens, windows of which some tokens are rejected, folds and a sweep agree; a checkpoint
// goes out and in again.
TEST_P(EveryKernel, StepsSweepsAndCheckpoints) {
  const Problem& p = GetParam().problem;
  ThreadPool pool(1);
  const int64_t n = 2 * p.grid.interval + 3;
  const Inputs inputs(p, n + p.max_window, distribution_of(1)),
      wrong(p, n + p.max_window, distribution_of(2));
  Layer layer(p, cuda_backend(), 6, pool);
  Sequence sequence(layer, inputs, 0), swept(layer, inputs, 2);
  sequence.decode_to(3, 1);
  for (int turn = 0; sequence.n() < n; ++turn) {
    const int window = static_cast<int>(std::min<int64_t>(p.max_window, n - sequence.n()));
    if (turn % 2 == 0) sequence.step(p.max_window, 0, &wrong);
    sequence.step(window, (window + 1) / 2);
  }
  sequence.fold_only();
  swept.sweep(n);
  expect_same(sequence.trace, swept.trace, n);
  const std::vector<float>& state = swept.trace.states.at(2 * p.grid.interval);
  layer.set_state(5, state);
  EXPECT_TRUE(same_bits(layer.state(5), state));
}

// The general kernel serves fp32 activations.
std::vector<Case> every_kernel() {
  std::vector<Case> out = cuda_entries();
  for (const Case& c : unique({cuda_shapes(), cuda_dtypes()})) {
    if (c.problem.activation == DType::kF32) out.push_back(c);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Cuda, EveryKernel, testing::ValuesIn(every_kernel()), test_name);

}  // namespace
}  // namespace replayssm::test
