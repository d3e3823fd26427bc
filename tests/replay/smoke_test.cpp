#include <gtest/gtest.h>

#include <cmath>

#include "harness.h"

namespace replayssm::test {
namespace {

Problem problem_of(Family family, DType checkpoint, DType ring) {
  Problem p;
  p.family = family;
  p.n_heads = family == Family::kKda ? 3 : 6;
  p.n_key_heads = family == Family::kKda ? 3 : 2;
  p.value_dim = 24;
  p.key_dim = 20;
  p.grid = {16, Grid::rows_for(16, 8)};
  p.max_window = 8;
  p.ring = ring;
  p.checkpoint = checkpoint;
  return p;
}

TEST(Smoke, StepsAndSweepAgreeWithDouble) {
  ThreadPool pool(2);
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (!isa_supported(isa)) continue;
    for (Family family : {Family::kMamba2, Family::kGdn, Family::kKda}) {
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
        const Problem p = problem_of(family, dtype, dtype == DType::kI8 ? DType::kF16 : dtype);
        const int64_t n = 100;
        Inputs inputs(p, n, {});
        ref::GridReplay grid(p, inputs.parameters());
        ref::Recurrence truth(p, inputs.parameters());
        std::vector<double> y_grid, y_truth;
        for (int64_t t = 0; t < n; ++t) {
          for (double y : grid.append(inputs.token(p, t))) y_grid.push_back(y);
          for (double y : truth.append(inputs.token(p, t))) y_truth.push_back(y);
        }
        auto error = [](const std::vector<float>& a, const std::vector<double>& b) {
          double num = 0, den = 0;
          for (size_t i = 0; i < b.size(); ++i) {
            num += (a[i] - b[i]) * (a[i] - b[i]);
            den += b[i] * b[i];
          }
          return std::sqrt(num / den);
        };
        Layer swept(p, isa, 2, pool);
        std::vector<float> y_sweep = swept.run(inputs, {{0, 0, 0, int32_t(n), 0, 1, 1, 1}}, true);
        ASSERT_EQ(y_sweep.size(), y_grid.size());
        printf("%s %s %s grid %.2e truth %.2e\n", isa_name(isa), family_name(family),
               dtype_name(dtype), error(y_sweep, y_grid), error(y_sweep, y_truth));
        for (int window : {1, 5, 8}) {
          Layer stepped(p, isa, 2, pool);
          SequenceState s{0, 0, 1, 1};
          std::vector<float> y;
          while (s.n < n) {
            Row row{s.n,
                    s.c,
                    s.n,
                    int32_t(std::min<int64_t>(window, n - s.n)),
                    0,
                    s.checkpoint_slot,
                    1 - s.checkpoint_slot,
                    s.ring_slot};
            auto part = stepped.run(inputs, {row}, false);
            y.insert(y.end(), part.begin(), part.end());
            ASSERT_EQ(commit_step(p.grid, row, row.n_tokens, s), Status::kOk);
          }
          ASSERT_EQ(y.size(), y_sweep.size());
          EXPECT_EQ(0, std::memcmp(y.data(), y_sweep.data(), y.size() * 4)) << window;
        }
      }
    }
  }
}

}  // namespace
}  // namespace replayssm::test
