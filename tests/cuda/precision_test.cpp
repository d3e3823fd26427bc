// On identical inputs the CUDA step is at most 1.5 times as far from the recurrence in double as
// the CPU library, outputs and the state at every fold, for each family and checkpoint dtype.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "../replay/backend_cpu.h"
#include "../replay/sequence.h"
#include "cuda_backend.h"
#include "cuda_cases.h"

namespace replayssm::test {
namespace {

// Sums of squared differences from double and of squares.
struct Distance {
  double difference = 0, energy = 0;
  void add(const std::vector<float>& a, const std::vector<double>& b) {
    for (size_t i = 0; i < b.size(); ++i) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      energy += b[i] * b[i];
    }
  }
  double relative() const { return std::sqrt(difference / energy); }
};

struct Errors {
  Distance y, state;
};

Errors errors_of(const Backend& backend, const Problem& p, double gate_mean) {
  ThreadPool pool(2);
  const int64_t n = 12 * p.grid.interval;
  Errors errors;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    InputDistribution distribution;
    distribution.gate_mean = gate_mean;
    distribution.seed = seed;
    const Inputs inputs(p, n, distribution);
    Layer layer(p, backend, 3, pool);
    Sequence sequence(layer, inputs, 1);
    sequence.decode_to(n, p.max_window);
    sequence.fold_only();
    ref::Recurrence exact(p, inputs.parameters());
    for (int64_t t = 0; t < n; ++t) {
      errors.y.add(sequence.trace.y.at(t), exact.append(inputs.token(p, t)));
      const auto state = sequence.trace.states.find(t + 1);
      if (state != sequence.trace.states.end()) errors.state.add(state->second, exact.state());
    }
  }
  return errors;
}

TEST(CudaPrecision, AtMostOneAndAHalfTimesTheCpus) {
  for (const Case& c : with_plan(cuda_dtypes())) {
    SCOPED_TRACE(c.name);
    for (const double gate_mean : {-6.0, -1.0}) {
      const Errors cuda = errors_of(cuda_backend(), c.problem, gate_mean);
      const Errors cpu = errors_of(cpu_backend(best_isa()), c.problem, gate_mean);
      std::printf("%s, gates e^%.0f: y %.2e (CPU %.2e), state %.2e (CPU %.2e)\n", c.name.c_str(),
                  gate_mean, cuda.y.relative(), cpu.y.relative(), cuda.state.relative(),
                  cpu.state.relative());
      EXPECT_LE(cuda.y.relative(), 1.5 * cpu.y.relative());
      EXPECT_LE(cuda.state.relative(), 1.5 * cpu.state.relative());
    }
  }
}

}  // namespace
}  // namespace replayssm::test
