// Sampled text with speculation follows the target's own law. Seeds are fixed: the tests are
// deterministic.
#include <cmath>
#include <map>

#include "runtime.h"

namespace replayssm {
namespace {

// P(X > x) of the chi-square law with `freedom` degrees: the upper incomplete gamma function.
double chi_square_tail(double x, double freedom) {
  const double a = freedom / 2, z = x / 2;
  const double front = std::exp(a * std::log(z) - z - std::lgamma(a));
  if (z < a + 1) {
    double term = 1 / a, sum = term;
    for (int i = 1; i < 1000; ++i) sum += term *= z / (a + i);
    return 1 - front * sum;
  }
  double b = z + 1 - a, c = 1e300, d = 1 / b, h = d;  // Lentz
  for (int i = 1; i < 1000; ++i) {
    b += 2;
    d = 1 / (b - i * (i - a) * d);
    c = b - i * (i - a) / c;
    h *= d * c;
  }
  return front * h;
}

TEST(Law, ChiSquareTailIsRight) {
  EXPECT_NEAR(chi_square_tail(3.841459, 1), 0.05, 1e-6);
  EXPECT_NEAR(chi_square_tail(18.30704, 10), 0.05, 1e-6);
  EXPECT_NEAR(chi_square_tail(29.58830, 10), 0.001, 1e-7);
  EXPECT_NEAR(chi_square_tail(2.0, 2), std::exp(-1.0), 1e-12);
}

// The sampler's law after `ids`, in double: temperature, then top_k, then top_p.
std::map<int32_t, double> law_after(Rig& engine, const std::vector<int32_t>& ids,
                                    const ops::SamplerParams& sampling) {
  const auto logits = logits_of(engine.runner(), ids, {});
  const float* last = logits.data() + (ids.size() - 1) * kVocab;
  std::vector<std::pair<double, int32_t>> order;
  for (int32_t id = 0; id < kVocab; ++id) {
    order.push_back({std::exp(double{last[id]} / double{sampling.temperature}), id});
  }
  std::sort(order.rbegin(), order.rend());
  if (sampling.top_k > 0) order.resize(static_cast<size_t>(sampling.top_k));
  double all = 0, kept = 0, total = 0;
  for (const auto& [weight, id] : order) all += weight;
  std::map<int32_t, double> law;
  for (const auto& [weight, id] : order) {
    if (kept >= double{sampling.top_p} * all) break;
    law[id] = weight;
    kept += weight;
  }
  for (const auto& [id, weight] : law) total += weight;
  for (auto& [id, weight] : law) weight /= total;
  return law;
}

// p of `counts` under `law`; what is expected fewer than 5 times is taken together.
double p_value(const std::map<int32_t, int64_t>& counts, const std::map<int32_t, double>& law) {
  double n = 0;
  for (const auto& [id, count] : counts) {
    n += static_cast<double>(count);
    EXPECT_TRUE(law.contains(id)) << "token " << id << " has no share in the law";
  }
  double x = 0, rest_expected = 0, rest_seen = 0;
  int cells = 0;
  const auto add = [&](double expected, double seen) {
    x += (seen - expected) * (seen - expected) / expected;
    ++cells;
  };
  for (const auto& [id, p] : law) {
    const double seen = counts.contains(id) ? static_cast<double>(counts.at(id)) : 0;
    if (n * p < 5) {
      rest_expected += n * p;
      rest_seen += seen;
    } else {
      add(n * p, seen);
    }
  }
  if (rest_expected > 0) add(rest_expected, rest_seen);
  EXPECT_GE(cells, 3) << n << " samples are too few, or the law too sharp";
  return chi_square_tail(x, cells - 1);
}

template <typename Key>
Key commonest(const std::map<Key, int64_t>& counts) {
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

// Proposes always the same ids: right for many seeds, wrong for many.
class ConstantDrafter final : public Drafter {
 public:
  explicit ConstantDrafter(std::vector<int32_t> ids) : ids_(std::move(ids)) {}
  std::vector<int32_t> propose(std::span<const int32_t>, int32_t k) override {
    auto out = ids_;
    out.resize(std::min(out.size(), static_cast<size_t>(k)));
    return out;
  }

 private:
  std::vector<int32_t> ids_;
};

struct LawCase {
  const char* name;
  Types types;
  ops::SamplerParams sampling;
  bool model_drafts;
};

class Law : public testing::TestWithParam<LawCase> {};

TEST_P(Law, SpeculatedTextFollowsTheTargetsLaw) {
  constexpr uint64_t kSeeds = 6000;
  Rig engine(GetParam().types, 8, 4);
  const std::vector<int32_t> prompt = {17, 3, 99, 60, 2, 8, 41};
  GenerateParams params;
  params.max_new_tokens = 4;
  params.draft_tokens = 3;
  params.sampling = GetParam().sampling;

  // What is likely is drafted, so that drafts stand often.
  std::vector<int32_t> likely = prompt;
  for (int i = 0; i < 3; ++i) {
    const auto law = law_after(engine, likely, params.sampling);
    likely.push_back(std::max_element(law.begin(), law.end(), [](const auto& a, const auto& b) {
                       return a.second < b.second;
                     })->first);
  }
  ConstantDrafter constant({likely.end() - 2, likely.end()});

  std::map<int32_t, int64_t> first;
  std::map<int32_t, std::map<int32_t, int64_t>> second;
  std::map<std::pair<int32_t, int32_t>, int64_t> pairs;
  std::map<std::pair<int32_t, int32_t>, std::map<int32_t, int64_t>> third;
  int64_t drafted = 0, accepted = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    params.sampling.seed = seed;
    std::unique_ptr<Drafter> model_drafter;
    if (GetParam().model_drafts) {
      // The target itself, but hotter: often right, often not.
      ops::SamplerParams hotter = params.sampling;
      hotter.temperature *= 3;
      model_drafter = make_model_drafter(engine.model(), *cpu_device(engine.context()),
                                         engine.context(), 16, hotter);
    }
    const Text text =
        text_of(engine, model_drafter ? model_drafter.get() : &constant, prompt, params);
    ASSERT_EQ(text.ids.size(), 4u);
    ++first[text.ids[0]];
    ++second[text.ids[0]][text.ids[1]];
    ++pairs[{text.ids[0], text.ids[1]}];
    ++third[{text.ids[0], text.ids[1]}][text.ids[2]];
    drafted += text.stats.drafted;
    accepted += text.stats.accepted;
  }
  EXPECT_GT(drafted, static_cast<int64_t>(kSeeds));
  EXPECT_GT(accepted, 200);
  EXPECT_LT(accepted, drafted * 9 / 10);

  auto given = prompt;
  EXPECT_GT(p_value(first, law_after(engine, given, params.sampling)), 1e-4);
  given.push_back(commonest(first));
  EXPECT_GT(p_value(second[given.back()], law_after(engine, given, params.sampling)), 1e-4);
  const auto pair = commonest(pairs);
  given = prompt;
  given.insert(given.end(), {pair.first, pair.second});
  EXPECT_GT(p_value(third[pair], law_after(engine, given, params.sampling)), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    Runtime, Law,
    testing::Values(
        LawCase{"constant", all_types()[0], {.temperature = 5.0f, .top_k = 8}, false},
        LawCase{"constant_top_p", all_types()[4], {.temperature = 0.5f, .top_p = 0.8f}, false},
        LawCase{"model", all_types()[0], {.temperature = 4.0f}, true},
        LawCase{"model_mamba2", all_types()[4], {.temperature = 0.5f}, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace replayssm
