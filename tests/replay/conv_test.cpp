// The short convolution: against plain loops in double, and the same properties as the step.
#include <gtest/gtest.h>

#include <cmath>

#include "harness.h"

namespace replayssm::test {
namespace {

struct ConvInputs {
  ConvInputs(const ConvProblem& p, int64_t n, uint64_t seed) : n_channels(p.n_channels) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal;
    x.resize(n * p.n_channels);
    for (float& v : x) {
      v = normal(rng);
      if (p.activation == DType::kBF16) v = bf16_to_float(float_to_bf16(v));
    }
  }
  const float* token(int64_t t) const { return x.data() + t * n_channels; }
  std::vector<float> x;
  int n_channels;
};

// The pools of one convolution, with gaps and guards as in Layer.
class Conv {
 public:
  Conv(const ConvProblem& problem, const Backend& backend, bool with_bias, int n_slots,
       ThreadPool& pool)
      : problem_(problem),
        pool_(pool),
        n_slots_(n_slots),
        plan_(backend.plan(problem).plan),
        multiple_(backend.stride_multiple()),
        row_(padded(problem.n_channels + 3)),
        slot_(padded(problem.ring_rows * row_ + 5)),
        ring(slot_ * n_slots * dtype_bytes(problem.activation)) {
    std::mt19937_64 rng(99);
    std::normal_distribution<float> normal;
    weight.resize(problem.width * problem.n_channels);
    for (float& v : weight) v = 0.5f * normal(rng);
    if (with_bias) bias.resize(problem.n_channels);
    for (float& v : bias) v = normal(rng);
  }

  std::vector<float> run(Row row, const ConvInputs& inputs) {
    return run(std::vector<Row>{row}, {&inputs})[0];
  }
  std::vector<std::vector<float>> run(std::vector<Row> rows,
                                      const std::vector<const ConvInputs*>& inputs) {
    const int channels = problem_.n_channels;
    const int64_t stride = padded(channels + 2), element = dtype_bytes(problem_.activation);
    int64_t n_tokens = 1;
    for (Row& row : rows) {
      row.token = n_tokens;
      n_tokens += row.n_tokens + 1;
    }
    Poisoned in(n_tokens * stride * element), out(n_tokens * stride * element);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int i = 0; i < rows[r].n_tokens; ++i) {
        for (int ch = 0; ch < channels; ++ch) {
          write_typed(problem_.activation, in.data(), (rows[r].token + i) * stride + ch,
                      inputs[r]->token(rows[r].start + i)[ch]);
        }
      }
    }
    ConvArgs args;
    args.rows = rows.data();
    args.n_rows = static_cast<int32_t>(rows.size());
    args.in = {in.data(), stride};
    args.out = {out.data(), stride};
    args.weight = weight.data();
    args.bias = bias.empty() ? nullptr : bias.data();
    args.ring = {ring.data(), slot_, row_};
    plan_->run(args, {n_slots_, n_slots_, n_tokens}, pool_);
    std::vector<std::vector<float>> y;
    int64_t clean_from = 0;
    for (const Row& row : rows) {
      std::vector<float>& values = y.emplace_back();
      for (int64_t t = row.token; t < row.token + row.n_tokens; ++t) {
        for (int ch = 0; ch < channels; ++ch) {
          values.push_back(read_typed(problem_.activation, out.data(), t * stride + ch));
        }
        EXPECT_TRUE(out.is_poison(clean_from, t * stride * element));
        clean_from = (t * stride + channels) * element;
        if (row.read_slot < 0) {
          EXPECT_TRUE(out.is_poison(t * stride * element, clean_from));
        }
      }
    }
    EXPECT_TRUE(out.is_poison(clean_from, n_tokens * stride * element));
    for (int slot = 0; slot < n_slots_; ++slot) {
      for (int r = 0; r < problem_.ring_rows; ++r) {
        const int64_t at = slot * slot_ + r * row_;
        EXPECT_TRUE(ring.is_poison((at + channels) * element, (at + row_) * element));
      }
      EXPECT_TRUE(ring.is_poison((slot * slot_ + problem_.ring_rows * row_) * element,
                                 (slot + 1) * slot_ * element));
    }
    return y;
  }

  // y of tokens [0, n) by the formula, in double.
  std::vector<double> expected(const ConvInputs& inputs, int64_t n) const {
    std::vector<double> y;
    for (int64_t t = 0; t < n; ++t) {
      for (int ch = 0; ch < problem_.n_channels; ++ch) {
        double sum = bias.empty() ? 0.0 : bias[ch];
        for (int i = 0; i < problem_.width; ++i) {
          const int64_t from = t - problem_.width + 1 + i;
          if (from >= 0) {
            sum += double{weight[i * problem_.n_channels + ch]} * inputs.token(from)[ch];
          }
        }
        y.push_back(sum / (1.0 + std::exp(-sum)));
      }
    }
    return y;
  }
  std::vector<float> weight, bias;

 private:
  int64_t padded(int64_t n) const { return (n + multiple_ - 1) / multiple_ * multiple_; }

  ConvProblem problem_;
  ThreadPool& pool_;
  int n_slots_;
  std::shared_ptr<const BackendConv> plan_;
  int64_t multiple_;
  int64_t row_, slot_;

 public:
  Poisoned ring;
};

struct ConvCase {
  ConvProblem problem;
  bool with_bias;
  int max_window;
};

std::vector<ConvCase> conv_cases(const Backend& backend) {
  std::vector<ConvCase> cases;
  const int channels[] = {1, 20, 64, 300};
  for (int width = 2; width <= 8; ++width) {
    for (DType activation : {DType::kF32, DType::kBF16}) {
      const int max_window = 1 + width * 3 % 8;
      cases.push_back({{channels[(width + static_cast<int>(activation)) % 4], width,
                        width - 1 + max_window, activation},
                       width % 2 == 0,
                       max_window});
      cases.back().problem = backend.fit(cases.back().problem);
    }
  }
  return cases;
}

std::string name_of(const ConvCase& c) {
  return "width " + std::to_string(c.problem.width) + " channels " +
         std::to_string(c.problem.n_channels) + " " + dtype_name(c.problem.activation) + " T" +
         std::to_string(c.max_window);
}

Row row_at(int64_t n, int64_t n_tokens, int slot = 1) {
  return {n, 0, n, static_cast<int32_t>(n_tokens), 0, slot, slot, slot};
}

class ConvTest : public EachBackend {
 protected:
  ThreadPool pool_{1};
};

TEST_P(ConvTest, FollowsTheFormula) {
  for (const ConvCase& c : conv_cases(backend())) {
    SCOPED_TRACE(name_of(c));
    for (int64_t n : {1, 2, c.problem.width - 1, c.problem.width, 40}) {
      Conv conv(c.problem, backend(), c.with_bias, 2, pool_);
      const ConvInputs inputs(c.problem, n, 1);
      const std::vector<double> expected = conv.expected(inputs, n);
      const std::vector<float> y = conv.run(row_at(0, n), inputs);
      ASSERT_EQ(y.size(), expected.size());
      for (size_t i = 0; i < y.size(); ++i) {
        const double bound = c.problem.activation == DType::kBF16
                                 ? std::fabs(expected[i]) / 256 + 1e-6
                                 : 2e-6 * (1 + std::fabs(expected[i]));
        ASSERT_NEAR(y[i], expected[i], bound) << i;
      }
    }
  }
}

// Random windows with rejected drafts and pending rows in a ring of exactly w - 1 + T_max rows give
// the bits of one long prompt. Returns whether they did.
bool windows_equal_one_shot(const ConvCase& c, const Backend& backend, ThreadPool& pool) {
  const int channels = c.problem.n_channels;
  const int64_t n = 60;
  const ConvInputs inputs(c.problem, n + 8, 1), wrong(c.problem, n + 8, 2);
  Conv whole(c.problem, backend, c.with_bias, 2, pool),
      conv(c.problem, backend, c.with_bias, 2, pool);
  const std::vector<float> expected = whole.run(row_at(0, n + 8), inputs);
  std::mt19937 rng(3);
  int64_t at = 0;
  while (at < n) {
    const int64_t drafts = 1 + rng() % c.max_window;
    if (rng() % 2 == 0) conv.run(row_at(at, drafts), wrong);
    // The right tokens in one pass, or in two with the first pending.
    const int64_t first = rng() % (drafts + 1);
    std::vector<float> y = conv.run(row_at(at, first), inputs);
    Row rest = row_at(at, drafts - first);
    rest.start = at + first;
    const std::vector<float> more = conv.run(rest, inputs);
    y.insert(y.end(), more.begin(), more.end());
    if (std::memcmp(y.data(), expected.data() + at * channels, y.size() * sizeof(float)) != 0) {
      return false;
    }
    at += rng() % (drafts + 1);
  }
  return true;
}

TEST_P(ConvTest, WindowsEqualOneShotInTheSmallestRing) {
  for (ConvCase c : conv_cases(backend())) {
    SCOPED_TRACE(name_of(c));
    EXPECT_TRUE(windows_equal_one_shot(c, backend(), pool_));
    c.problem.ring_rows -= 1;
    if (c.max_window == 1) continue;  // plan() refuses fewer rows than the width
    EXPECT_FALSE(windows_equal_one_shot(c, backend(), pool_)) << "a row less must show";
  }
}

TEST_P(ConvTest, PromptsCutAnywhere) {
  for (const ConvCase& c : conv_cases(backend())) {
    SCOPED_TRACE(name_of(c));
    const int64_t n = 30;
    const ConvInputs inputs(c.problem, n, 1);
    Conv whole(c.problem, backend(), c.with_bias, 2, pool_);
    const std::vector<float> expected = whole.run(row_at(0, n), inputs);
    for (int64_t cut = 1; cut < n; cut += 1 + cut / 8) {
      Conv conv(c.problem, backend(), c.with_bias, 2, pool_);
      std::vector<float> y = conv.run(row_at(0, cut), inputs);
      const std::vector<float> rest = conv.run(row_at(cut, n - cut), inputs);
      y.insert(y.end(), rest.begin(), rest.end());
      ASSERT_TRUE(same_bits(y, expected)) << cut;
    }
  }
}

TEST_P(ConvTest, BatchesThreadsAndSkippedRows) {
  for (const ConvCase& c : conv_cases(backend())) {
    SCOPED_TRACE(name_of(c));
    ThreadPool two(2);
    const ConvInputs a(c.problem, 20, 1), b(c.problem, 20, 2);
    Conv alone_a(c.problem, backend(), c.with_bias, 5, pool_);
    Conv alone_b(c.problem, backend(), c.with_bias, 5, pool_);
    Conv batch(c.problem, backend(), c.with_bias, 5, two);
    for (int64_t at : {0, 7, 9}) {
      const int64_t t = at == 0 ? 7 : at == 7 ? 2 : 11;
      Row skipped = row_at(at, t, 2);
      skipped.read_slot = -1;
      const auto y = batch.run({row_at(at, t, 4), skipped, row_at(at, t, 1)}, {&b, &a, &a});
      EXPECT_TRUE(same_bits(y[0], alone_b.run(row_at(at, t, 4), b)));
      EXPECT_TRUE(same_bits(y[2], alone_a.run(row_at(at, t, 1), a)));
    }
    // Slots of no row are as they were.
    Conv untouched(c.problem, backend(), c.with_bias, 5, pool_);
    const size_t slot = batch.ring.bytes.size() / 5;
    for (size_t s : {0, 2, 3}) {
      EXPECT_TRUE(std::equal(batch.ring.bytes.begin() + s * slot,
                             batch.ring.bytes.begin() + (s + 1) * slot,
                             untouched.ring.bytes.begin()));
    }
  }
}

REPLAYSSM_EACH_BACKEND(ConvTest);

}  // namespace
}  // namespace replayssm::test
