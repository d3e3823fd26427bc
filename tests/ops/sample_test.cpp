#include "ops/sample.h"

#include <array>

#include "fixture.h"
#include "ops/cpu/dispatch.h"
#include "ops/gumbel.h"
#include "ops/ref/ref.h"

namespace replayssm::ops {
namespace {

std::vector<float> random_logits(int64_t n, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(static_cast<size_t>(n));
  for (float& x : logits) x = normal(random);
  return logits;
}

TEST(Sample, GreedyTakesTheLowestIndexOfATie) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const int64_t n : {1, 2, 16, 17, 33, 5000}) {
      std::vector<float> logits = random_logits(n, 1.0f, 1);
      Sampler sampler(context, n);
      logits[n - 1] = 50.0f;
      logits[n / 2] = 50.0f;
      const SampleResult result = sampler.sample(logits.data(), {}, 3);
      EXPECT_EQ(result.status, SampleStatus::kOk);
      EXPECT_EQ(result.token, n / 2);
    }
  });
}

TEST(Sample, BadLogits) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const int64_t bad : {0, 5, 39, 40}) {
      Sampler sampler(context, 41);
      std::vector<float> logits = random_logits(41, 1.0f, 1);
      for (const float temperature : {0.0f, 1.0f}) {
        SamplerParams params;
        params.temperature = temperature;
        logits[bad] = NAN;
        EXPECT_EQ(sampler.sample(logits.data(), params, 0).status, SampleStatus::kNan);
        logits[bad] = INFINITY;
        EXPECT_EQ(sampler.sample(logits.data(), params, 0).status, SampleStatus::kNan);
        logits[bad] = -INFINITY;
        for (int64_t position = 0; position < 500; ++position) {
          const SampleResult result = sampler.sample(logits.data(), params, position);
          EXPECT_EQ(result.status, SampleStatus::kOk);
          EXPECT_NE(result.token, bad);
        }
        const std::vector<float> none(41, -INFINITY);
        EXPECT_EQ(sampler.sample(none.data(), params, 0).status, SampleStatus::kEmpty);
      }
    }
  });
}

// A known answer of Philox4x32-10 (the authors' test vectors): counter 0, key 0.
TEST(Sample, GeneratorIsPhilox) {
  const NoiseBlock zeros = noise_block(0, 0, 0);
  EXPECT_EQ(zeros.word[0], 0x6627e8d5u);
  EXPECT_EQ(zeros.word[1], 0xe169c58du);
  EXPECT_NE(noise_block(0, 1, 0).word[0], noise_block(1, 0, 0).word[0]);
  EXPECT_NE(noise_block(uint64_t{1} << 32, 0, 0).word[0], noise_block(1, 0, 0).word[0]);
  EXPECT_NE(noise_block(0, 1, 0).word[0], noise_block(0, 0, 1).word[0]);
}

TEST(Sample, NoiseIsUniform) {
  std::array<int, 64> bins{};
  const int n = 16000;
  for (int i = 0; i < n; ++i) {
    const NoiseBlock block = noise_block(12345, i % 100, static_cast<uint32_t>(i / 100));
    for (const uint32_t word : block.word) ++bins[word >> 26];
  }
  double chi = 0.0;
  for (const int count : bins) chi += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi, 125.0);  // 63 degrees, p about 5e-6
}

TEST(Sample, GumbelIsMinusLnOfMinusLn) {
  for (double x = 1e-10; x < 50; x *= 1.07) {
    EXPECT_NEAR(exact_log(x), std::log(x), 4e-16 * (std::abs(std::log(x)) + 0.01)) << x;
  }
  for (const uint32_t bits : {0u, 1u, 77u, 0x40000000u, 0x7fffffffu, 0x80000000u, 0xfffffffeu}) {
    const double u = (bits + 0.5) * 0x1p-32;
    EXPECT_NEAR(gumbel(bits), -std::log(-std::log(u)), 1e-14);
  }
  EXPECT_GT(gumbel(0), kLeastGumbel);
  EXPECT_LT(gumbel(~0u), kMaxGumbel);
  for (const int64_t first : {0, 64, 12800}) {
    on_each_backend([&](const Context& context, const Backend&) {
      std::array<uint32_t, kNoiseTokens> noise{};
      vector_kernels(context.isa()).noise(9, 70, static_cast<uint32_t>(first / 4), noise.data());
      for (size_t i = 0; i < noise.size(); ++i) {
        const auto token = static_cast<uint32_t>(first) + static_cast<uint32_t>(i);
        EXPECT_EQ(noise[i], noise_block(9, 70, token / 4).word[token % 4]);
      }
    });
  }
}

// The drawn distribution against the exact one, by chi-square over the tokens worth a bin.
TEST(Sample, LawAfterEachFilter) {
  const int64_t n_vocab = 333;
  const std::vector<float> logits = random_logits(n_vocab, 2.0f, 7);
  std::vector<SamplerParams> cases;
  for (const float temperature : {0.7f, 1.5f}) {
    cases.push_back({temperature, 0, 1.0f, 0.0f, 1});
    cases.push_back({temperature, 12, 1.0f, 0.0f, 2});
    cases.push_back({temperature, 0, 0.8f, 0.0f, 3});
    cases.push_back({temperature, 0, 1.0f, 0.05f, 4});
    cases.push_back({temperature, 40, 0.9f, 0.02f, 5});
    cases.push_back({temperature, 1000, 0.999f, 1e-4f, 6});
  }
  on_each_backend([&](const Context& context, const Backend&) {
    Sampler sampler(context, n_vocab);
    for (const SamplerParams& params : cases) {
      SCOPED_TRACE(::testing::Message()
                   << "temperature " << params.temperature << " top_k " << params.top_k << " top_p "
                   << params.top_p << " min_p " << params.min_p);
      const std::vector<double> distribution =
          ref::sample_distribution(logits.data(), n_vocab, params);
      const int n = 8000;
      std::vector<int> counts(static_cast<size_t>(n_vocab));
      for (int i = 0; i < n; ++i) {
        const SampleResult result = sampler.sample(logits.data(), params, i);
        ASSERT_EQ(result.status, SampleStatus::kOk);
        ++counts[static_cast<size_t>(result.token)];
      }
      double chi = 0.0;
      double rest_expected = 0.0;
      double rest_seen = 0.0;
      int bins = 0;
      for (int64_t t = 0; t < n_vocab; ++t) {
        const double expected = distribution[t] * n;
        if (distribution[t] == 0.0) {
          ASSERT_EQ(counts[t], 0) << "token " << t;
        } else if (expected < 10.0) {
          rest_expected += expected;
          rest_seen += counts[t];
        } else {
          chi += (counts[t] - expected) * (counts[t] - expected) / expected;
          ++bins;
        }
      }
      if (rest_expected >= 10.0) {
        chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        ++bins;
      }
      EXPECT_LT(chi, bins + 5.0 * std::sqrt(2.0 * bins) + 5.0);
    }
  });
}

// On a large vocabulary, draw by draw: of the tokens that the filters keep, the one of the largest
// score.
TEST(Sample, LargeVocabularyKeepsExactlyTheLawsTokens) {
  const int64_t n_vocab = 20000;
  for (const float spread : {0.01f, 1.0f, 6.0f}) {
    const std::vector<float> logits = random_logits(n_vocab, spread, 9);
    for (const SamplerParams& params :
         {SamplerParams{1.0f, 0, 1.0f, 0.0f, 1}, SamplerParams{1.0f, 50, 1.0f, 0.0f, 2},
          SamplerParams{0.7f, 0, 0.9f, 0.0f, 3}, SamplerParams{1.0f, 0, 1.0f, 0.3f, 4},
          SamplerParams{1.0f, 5000, 0.95f, 0.01f, 5}}) {
      const std::vector<double> distribution =
          ref::sample_distribution(logits.data(), n_vocab, params);
      on_each_backend([&](const Context& context, const Backend&) {
        Sampler sampler(context, n_vocab);
        for (int64_t position = 0; position < 40; ++position) {
          const SampleResult result = sampler.sample(logits.data(), params, position);
          ASSERT_EQ(result.status, SampleStatus::kOk);
          ASSERT_GT(distribution[static_cast<size_t>(result.token)], 0.0);
          const auto score = [&](size_t t) {
            const uint32_t bits =
                noise_block(params.seed, position, static_cast<uint32_t>(t / 4)).word[t % 4];
            return std::log(distribution[t]) + gumbel(bits);
          };
          const double drawn = score(static_cast<size_t>(result.token));
          for (size_t t = 0; t < distribution.size(); ++t) {
            if (distribution[t] > 0) ASSERT_LT(score(t), drawn + 1e-6) << t;
          }
          EXPECT_EQ(sampler.sample(logits.data(), params, position).token, result.token);
        }
      });
    }
  }
}

TEST(Sample, TiesAtTheKthPlaceGoToTheLowerIndex) {
  on_each_backend([](const Context& context, const Backend&) {
    const std::vector<float> logits(100, 1.5f);
    Sampler sampler(context, 100);
    SamplerParams params{1.0f, 7, 1.0f, 0.0f, 1};
    std::vector<bool> seen(100);
    for (int64_t position = 0; position < 500; ++position) {
      const int32_t token = sampler.sample(logits.data(), params, position).token;
      ASSERT_LT(token, 7);
      seen[static_cast<size_t>(token)] = true;
    }
    for (int i = 0; i < 7; ++i) EXPECT_TRUE(seen[static_cast<size_t>(i)]);
    params = {1.0f, 0, 0.0f, 0.0f, 1};
    EXPECT_EQ(sampler.sample(logits.data(), params, 0).token, 0);
  });
}

TEST(Sample, LogProb) {
  on_each_backend([](const Context& context, const Backend&) {
    const std::vector<float> logits = random_logits(3001, 3.0f, 2);
    const std::vector<double> distribution =
        ref::sample_distribution(logits.data(), 3001, SamplerParams{1.0f, 0, 1.0f, 0.0f, 0});
    for (const int32_t token : {0, 1500, 3000}) {
      EXPECT_NEAR(log_prob(context, logits.data(), 3001, token), std::log(distribution[token]),
                  1e-6);
    }
  });
}

}  // namespace
}  // namespace replayssm::ops
