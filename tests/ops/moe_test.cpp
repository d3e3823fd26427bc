#include "ops/moe.h"

#include <algorithm>
#include <limits>

#include "fixture.h"
#include "moe_cases.h"
#include "ops/ref/ref.h"

namespace replayssm::ops {
namespace {

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;

  Routed(const Context& context, const Router& router, ConstMatrix logits)
      : experts(static_cast<size_t>(logits.rows * router.top_k)), weights(experts.size()) {
    route(context, router, logits, experts.data(), weights.data());
  }
  bool operator==(const Routed&) const = default;
};

TEST(Moe, RoutesAsTheReference) {
  const std::vector<float> bias = random_weights(512, 5);
  on_each_backend([&](const Context& context, const Backend&) {
    for (const Router& router : routers_to_try(bias)) {
      Tensor logits(DType::kF32, 70, router.n_experts);
      logits.fill(static_cast<uint32_t>(router.n_experts), 2.0f);
      const Routed got(context, router, logits.matrix());
      for (int64_t t = 0; t < logits.rows(); ++t) {
        std::vector<float> row;
        for (int64_t e = 0; e < router.n_experts; ++e) row.push_back(logits.get(t, e));
        const auto want = ref::route(router, row);
        for (size_t i = 0; i < want.size(); ++i) {
          const size_t at = static_cast<size_t>(t * router.top_k) + i;
          ASSERT_EQ(got.experts[at], want[i].expert) << "token " << t << " choice " << i;
          EXPECT_NEAR(got.weights[at], want[i].weight, 1e-6 * want[i].weight);
        }
      }
      // a row's choice is its own
      for (const int64_t rows : {1, 2, 33}) {
        const Routed part(context, router, logits.matrix().slice_rows(0, rows));
        EXPECT_TRUE(std::equal(part.experts.begin(), part.experts.end(), got.experts.begin()));
        EXPECT_TRUE(std::equal(part.weights.begin(), part.weights.end(), got.weights.begin()));
      }
    }
  });
}

TEST(Moe, TiesGoToTheLowerIndex) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
      Tensor logits(DType::kF32, 1, 6);
      const float values[] = {0.0f, 1.0f, -1.0f, 1.0f, 0.0f, 1.0f};
      for (int64_t e = 0; e < 6; ++e) logits.set(0, e, values[e]);
      const Routed got(context, router_of(score, 6, 5), logits.matrix());
      EXPECT_EQ(got.experts, (std::vector<int32_t>{1, 3, 5, 0, 4}));
    }
  });
}

// Of a broken row too, every choice is an expert and none is taken twice; its weights say so.
TEST(Moe, BrokenLogitsStayInBounds) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  on_each_backend([&](const Context& context, const Backend&) {
    for (const float bad : {kNan, INFINITY, -INFINITY}) {
      Router router = router_of(RouterScore::kSigmoid, 8, 3);
      router.n_groups = 4;
      router.top_groups = 2;
      for (const Router& r : {router, router_of(RouterScore::kSoftmax, 8, 3)}) {
        Tensor logits(DType::kF32, 2, 8);
        for (int64_t e = 0; e < 8; ++e) logits.set(0, e, bad);
        for (int64_t e = 0; e < 8; ++e) logits.set(1, e, static_cast<float>(e));
        const Routed got(context, r, logits.matrix());
        for (int i = 0; i < 3; ++i) {
          EXPECT_EQ(std::count(got.experts.begin(), got.experts.begin() + 3, got.experts[i]), 1);
          EXPECT_GE(got.experts[i], 0);
          EXPECT_LT(got.experts[i], 8);
          EXPECT_TRUE(!std::isnan(bad) || std::isnan(got.weights[i]));
        }
        EXPECT_EQ(got.experts[3], 7);
        EXPECT_TRUE(std::isfinite(got.weights[3]));
      }
    }
  });
}

// Rows go to their experts and come back, summed in the order of the choice.
TEST(Moe, RowsThereAndBack) {
  const int32_t n_tokens = 37, top_k = 4, n_experts = 9;
  std::mt19937 random(3);
  std::vector<int32_t> experts;
  for (int32_t t = 0; t < n_tokens; ++t) {
    std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};  // none goes to expert 8
    std::shuffle(all.begin(), all.end(), random);
    experts.insert(experts.end(), all.begin(), all.begin() + top_k);
  }
  std::vector<int32_t> first(n_experts + 1), row(experts.size());
  sort_by_expert(experts.data(), n_tokens, top_k, n_experts, first.data(), row.data());
  EXPECT_EQ(first[0], 0);
  EXPECT_EQ(first[8], first[9]);
  std::vector<int32_t> used(experts.size());
  for (size_t i = 0; i < experts.size(); ++i) {
    EXPECT_GE(row[i], first[experts[i]]);
    EXPECT_LT(row[i], first[experts[i] + 1]);
    ++used[static_cast<size_t>(row[i])];
  }
  EXPECT_EQ(used, std::vector<int32_t>(experts.size(), 1));

  const std::vector<float> weights = random_weights(n_tokens * top_k, 7);
  on_each_backend([&](const Context& context, const Backend&) {
    for (const DType dtype : kActivations) {
      Tensor x(dtype, n_tokens, 45), spread(dtype, n_tokens * top_k, 45);
      x.fill(1);
      spread_rows(context, x.matrix(), row.data(), top_k, spread.matrix());
      EXPECT_TRUE(spread.intact());
      for (int32_t i = 0; i < n_tokens * top_k; ++i) {
        ASSERT_TRUE(same_row(spread, row[static_cast<size_t>(i)], x, i / top_k));
      }
    }
    Tensor y(DType::kF32, n_tokens * top_k, 45), sum(DType::kF32, n_tokens, 45);
    y.fill(2);
    sum_rows(context, y.matrix(), row.data(), weights.data(), top_k, sum.matrix());
    EXPECT_TRUE(sum.intact());
    const bool fused = context.isa() != Isa::kPortable;
    for (int64_t t = 0; t < n_tokens; ++t) {
      for (int64_t c = 0; c < 45; ++c) {
        float want = 0.0f;
        for (int64_t i = t * top_k; i < (t + 1) * top_k; ++i) {
          const float w = weights[static_cast<size_t>(i)],
                      v = y.get(row[static_cast<size_t>(i)], c);
          want = fused ? std::fma(v, w, want) : v * w + want;
        }
        ASSERT_EQ(sum.get(t, c), want);
      }
    }
  });
}

TEST(Moe, AddsGated) {
  on_each_backend([](const Context& context, const Backend&) {
    Tensor gate(DType::kF32, 5, 1), x(DType::kF32, 5, 77), y(DType::kF32, 5, 77);
    gate.fill(1, 3.0f);
    x.fill(2);
    y.fill(3);
    std::vector<double> want;
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t c = 0; c < 77; ++c) {
        want.push_back(y.get(t, c) + x.get(t, c) / (1.0 + std::exp(-double{gate.get(t, 0)})));
      }
    }
    add_gated(context, gate.matrix(), x.matrix(), y.matrix());
    EXPECT_LT(nmse(y, want), 1e-13);
    EXPECT_TRUE(y.intact());
  });
}

}  // namespace
}  // namespace replayssm::ops
