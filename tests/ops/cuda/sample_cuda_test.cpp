#include "ops/cuda/sample_cuda.h"

#include "device_fixture.h"
#include "ops/ref/ref.h"

namespace replayssm::ops::cuda {
namespace {

std::vector<float> random_logits(int64_t n, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(static_cast<size_t>(n));
  for (float& x : logits) x = normal(random);
  return logits;
}

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<SampleStatus> status;
};

// One row of logits drawn at many positions, all in one launch (stride 0) and with one set of
// parameters.
Drawn draw(const CudaContext& context, const std::vector<float>& logits,
           const SamplerParams& params, const std::vector<int64_t>& positions) {
  const auto n = static_cast<int64_t>(positions.size());
  const DeviceBuffer dlogits(logits), dparams(std::vector<SamplerParams>{params});
  const DeviceBuffer sequence(std::vector<int32_t>(positions.size(), 0)), at(positions);
  const DeviceBuffer tokens(n * 4), status(n * 4);
  const ConstMatrix rows{dlogits.data(), DType::kF32, n, static_cast<int64_t>(logits.size()), 0};
  sample(context, rows,
         {static_cast<const SamplerParams*>(dparams.data()),
          static_cast<const int32_t*>(sequence.data()), static_cast<const int64_t*>(at.data())},
         static_cast<int32_t*>(tokens.data()), static_cast<SampleStatus*>(status.data()));
  cuda_check(cudaDeviceSynchronize(), "sample");
  return {tokens.download<int32_t>(n), status.download<SampleStatus>(n)};
}

std::vector<int64_t> first_positions(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(i);
  return out;
}

TEST(SampleCuda, GreedyTakesTheLowestIndexOfATie) {
  const Device device;
  for (const int64_t n : {1, 2, 16, 17, 33, 5000, 40000}) {
    Tensor logits(DType::kF32, 3, n);
    logits.fill(1);
    for (int64_t r = 0; r < 3; ++r) {
      logits.set(r, n - 1, 50.0f);
      logits.set(r, n / 2, 50.0f);
    }
    if (n > 2) logits.set(2, n / 2, -60.0f);
    const DeviceTensor dlogits(logits, Place::kOdd);
    const DeviceBuffer tokens(3 * 4), status(3 * 4);
    argmax(device.context(), dlogits.matrix(), static_cast<int32_t*>(tokens.data()),
           static_cast<SampleStatus*>(status.data()));
    device.wait();
    const auto got = tokens.download<int32_t>(3);
    EXPECT_EQ(got[0], n / 2);
    EXPECT_EQ(got[1], n / 2);
    EXPECT_EQ(got[2], n > 2 ? n - 1 : n / 2);
    EXPECT_EQ(status.download<SampleStatus>(3), std::vector(3, SampleStatus::kOk));
  }
}

TEST(SampleCuda, BadLogits) {
  const Device device;
  const CudaContext& context = device.context();
  for (const int64_t bad : {0, 5, 39, 40}) {
    for (const float temperature : {0.0f, 1.0f}) {
      std::vector<float> logits = random_logits(41, 1.0f, 1);
      SamplerParams params;
      params.temperature = temperature;
      for (const float x : {NAN, INFINITY}) {
        logits[bad] = x;
        const Drawn got = draw(context, logits, params, {0});
        EXPECT_EQ(got.status[0], SampleStatus::kNan);
        EXPECT_EQ(got.tokens[0], -1);
      }
      logits[bad] = -INFINITY;
      const Drawn got = draw(context, logits, params, first_positions(500));
      for (size_t i = 0; i < 500; ++i) {
        EXPECT_EQ(got.status[i], SampleStatus::kOk);
        EXPECT_NE(got.tokens[i], bad);
      }
      const Drawn none = draw(context, std::vector<float>(41, -INFINITY), params, {0});
      EXPECT_EQ(none.status[0], SampleStatus::kEmpty);
    }
  }
}

// The drawn distribution against the exact one, by chi-square over the tokens worth a bin.
TEST(SampleCuda, LawAfterEachFilter) {
  const Device device;
  const int64_t n_vocab = 333, n = 8000;
  const std::vector<float> logits = random_logits(n_vocab, 2.0f, 7);
  for (const float temperature : {0.7f, 1.5f}) {
    for (const SamplerParams& params : {SamplerParams{temperature, 0, 1.0f, 0.0f, 1},
                                        SamplerParams{temperature, 12, 1.0f, 0.0f, 2},
                                        SamplerParams{temperature, 0, 0.8f, 0.0f, 3},
                                        SamplerParams{temperature, 0, 1.0f, 0.05f, 4},
                                        SamplerParams{temperature, 40, 0.9f, 0.02f, 5},
                                        SamplerParams{temperature, 1000, 0.999f, 1e-4f, 6}}) {
      SCOPED_TRACE(::testing::Message()
                   << "temperature " << params.temperature << " top_k " << params.top_k << " top_p "
                   << params.top_p << " min_p " << params.min_p);
      const std::vector<double> distribution =
          ref::sample_distribution(logits.data(), n_vocab, params);
      const Drawn got = draw(device.context(), logits, params, first_positions(n));
      std::vector<int> counts(static_cast<size_t>(n_vocab));
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        ASSERT_EQ(got.status[i], SampleStatus::kOk);
        ASSERT_GE(got.tokens[i], 0);
        ++counts[static_cast<size_t>(got.tokens[i])];
      }
      double chi = 0.0, rest_expected = 0.0, rest_seen = 0.0;
      int bins = 0;
      for (size_t t = 0; t < distribution.size(); ++t) {
        const double expected = distribution[t] * static_cast<double>(n);
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
  }
}

// Draw by draw on a large vocabulary: the CPU's token.
TEST(SampleCuda, LargeVocabularyAsOnTheCpu) {
  const Device device;
  const int64_t n_vocab = 20000;
  ThreadPool pool(1);
  const Context context(pool);
  Sampler sampler(context, n_vocab);
  for (const float spread : {0.01f, 1.0f, 6.0f}) {
    const std::vector<float> logits = random_logits(n_vocab, spread, 9);
    for (const SamplerParams& params :
         {SamplerParams{1.0f, 0, 1.0f, 0.0f, 1}, SamplerParams{1.0f, 50, 1.0f, 0.0f, 2},
          SamplerParams{0.7f, 0, 0.9f, 0.0f, 3}, SamplerParams{1.0f, 0, 1.0f, 0.3f, 4},
          SamplerParams{1.0f, 5000, 0.95f, 0.01f, 5}}) {
      const std::vector<double> distribution =
          ref::sample_distribution(logits.data(), n_vocab, params);
      const Drawn got = draw(device.context(), logits, params, first_positions(400));
      for (int64_t position = 0; position < 400; ++position) {
        const auto token = static_cast<size_t>(got.tokens[static_cast<size_t>(position)]);
        ASSERT_LT(token, distribution.size());
        ASSERT_GT(distribution[token], 0.0);
        EXPECT_EQ(static_cast<int32_t>(token),
                  sampler.sample(logits.data(), params, position).token);
        // Alone it is what it is among others.
        if (position % 10 != 0) continue;
        const Drawn alone = draw(device.context(), logits, params, {position});
        EXPECT_EQ(static_cast<size_t>(alone.tokens[0]), token);
      }
    }
  }
}

TEST(SampleCuda, TiesAtTheKthPlaceGoToTheLowerIndex) {
  const Device device;
  const std::vector<float> logits(100, 1.5f);
  const Drawn got = draw(device.context(), logits, {1.0f, 7, 1.0f, 0.0f, 1}, first_positions(500));
  std::vector<bool> seen(7);
  for (const int32_t token : got.tokens) {
    ASSERT_LT(token, 7);
    seen[static_cast<size_t>(token)] = true;
  }
  EXPECT_EQ(seen, std::vector<bool>(7, true));
  EXPECT_EQ(draw(device.context(), logits, {1.0f, 0, 0.0f, 0.0f, 1}, {0}).tokens[0], 0);
}

TEST(SampleCuda, LogProb) {
  const Device device;
  const std::vector<float> logits = random_logits(3001, 3.0f, 2);
  const std::vector<double> distribution =
      ref::sample_distribution(logits.data(), 3001, SamplerParams{1.0f, 0, 1.0f, 0.0f, 0});
  const std::vector<int32_t> tokens = {0, 1500, 3000};
  const DeviceBuffer dlogits(logits), dtokens(tokens), out(3 * 8);
  log_prob(device.context(), {dlogits.data(), DType::kF32, 3, 3001, 0},
           static_cast<const int32_t*>(dtokens.data()), static_cast<double*>(out.data()));
  device.wait();
  const auto got = out.download<double>(3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(got[i], std::log(distribution[static_cast<size_t>(tokens[i])]), 1e-6);
  }
}

TEST(SampleCuda, VerifyKeepsDraftsUpToTheFirstThatDiffers) {
  const Device device;
  // Windows: all drafts are accepted; the second differs; the first differs; one token; none.
  const std::vector<int32_t> tokens = {5, 6, 7, 8, /**/ 5, 6, 7, 8, /**/ 5, 6, 7, /**/ 9};
  const std::vector<int32_t> drawn = {6, 7, 8, 1, /**/ 6, 2, 8, 1, /**/ 3, 7, 4, /**/ 4};
  const DeviceBuffer dtokens(tokens), ddrawn(drawn);
  const DeviceBuffer n_tokens(std::vector<int32_t>{4, 4, 3, 1, 0});
  const DeviceBuffer token(std::vector<int64_t>{0, 4, 8, 11, 0});
  const DeviceBuffer n_accepted(5 * 4), next(5 * 4);
  VerifyRowsCuda rows;
  rows.n_tokens = static_cast<const int32_t*>(n_tokens.data());
  rows.first = static_cast<const int64_t*>(token.data());
  rows.n_rows = 5;
  verify(device.context(), rows, static_cast<const int32_t*>(dtokens.data()),
         static_cast<const int32_t*>(ddrawn.data()), static_cast<int32_t*>(n_accepted.data()),
         static_cast<int32_t*>(next.data()));
  device.wait();
  EXPECT_EQ(n_accepted.download<int32_t>(5), (std::vector<int32_t>{3, 1, 0, 0, 0}));
  EXPECT_EQ(next.download<int32_t>(5), (std::vector<int32_t>{1, 2, 3, 4, -1}));

  // Tokens that are elsewhere: here in the opposite order.
  std::vector<int64_t> places;
  for (size_t i = tokens.size(); i > 0; --i) places.push_back(static_cast<int64_t>(i) - 1);
  const DeviceBuffer dplaces(places);
  const DeviceBuffer dreversed(std::vector<int32_t>(tokens.rbegin(), tokens.rend()));
  rows.token_of = static_cast<const int64_t*>(dplaces.data());
  verify(device.context(), rows, static_cast<const int32_t*>(dreversed.data()),
         static_cast<const int32_t*>(ddrawn.data()), static_cast<int32_t*>(n_accepted.data()),
         static_cast<int32_t*>(next.data()));
  device.wait();
  EXPECT_EQ(n_accepted.download<int32_t>(5), (std::vector<int32_t>{3, 1, 0, 0, 0}));
}

}  // namespace
}  // namespace replayssm::ops::cuda
