// The plain baseline: near replay in fp32, and the same bits with and without speculation.
#include <cmath>

#include "../runtime/runtime.h"
#include "bench/baselines/plain_device.h"

namespace replayssm {
namespace {

constexpr float kBound = 1e-4f;  // of the largest |logit|

ModelOptions options_of(int32_t interval, int32_t max_window) {
  ModelOptions options;
  options.interval = interval;
  options.max_window = max_window;
  return options;
}

std::unique_ptr<Rig> plain_rig(const std::string& folder, const ModelOptions& options,
                               int n_threads = 1) {
  return std::make_unique<Rig>(folder, options, n_threads, RunnerLimits{1, 512, 256, 256},
                               bench::plain_device);
}

float largest(const float* logits) {
  float out = 0;
  for (int32_t i = 0; i < kVocab; ++i) out = std::max(out, std::abs(logits[i]));
  return out;
}

class Plain : public testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return fixture(GetParam()); }
};

TEST_P(Plain, LogitsAreNearReplay) {
  const auto ids = random_ids(300, 1);
  const auto engine = plain_rig(folder(), options_of(16, 1));
  Rig& plain = *engine;
  const auto want = logits_of(plain.runner(), ids, {.mode = LogitsMode::kDecode});
  for (const int32_t interval : {8, 16, 32, 64}) {
    Rig replay(folder(), options_of(interval, 1));
    const auto got = logits_of(replay.runner(), ids, {.mode = LogitsMode::kDecode});
    for (size_t at = 0; at < want.size(); at += kVocab) {
      const float bound = kBound * largest(&want[at]);
      for (size_t i = at; i < at + kVocab; ++i) {
        ASSERT_LE(std::abs(got[i] - want[i]), bound) << "position " << at / kVocab;
      }
    }
  }
}

// Greedy texts are equal, or part at a near-tie of the plain logits.
TEST_P(Plain, TextPartsOnlyAtNearTies) {
  const auto engine = plain_rig(folder(), options_of(16, 1));
  Rig& plain = *engine;
  Rig replay(folder(), options_of(16, 1));
  GenerateParams params;
  params.max_new_tokens = 150;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    auto ids = random_ids(10, seed);
    const auto want = text_of(plain, nullptr, ids, params).ids;
    const auto got = text_of(replay, nullptr, ids, params).ids;
    const auto apart = std::mismatch(want.begin(), want.end(), got.begin(), got.end());
    if (apart.first == want.end()) continue;
    ids.insert(ids.end(), want.begin(), apart.first);
    const auto logits = logits_of(plain.runner(), ids, {});
    const float* last = logits.data() + (ids.size() - 1) * kVocab;
    EXPECT_LE(last[*apart.first] - last[*apart.second], kBound * largest(last)) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Runtime, Plain,
                         testing::Values("qwen3_5_tied", "qwen3_5_untied", "nemotron_h_pattern"),
                         [](const auto& info) { return std::string(info.param); });

class PlainBits : public testing::TestWithParam<Types> {
 protected:
  // Plain state has no int8.
  ModelOptions options(int32_t max_window) const {
    auto out = replayssm::options_of(GetParam(), 32, max_window);
    if (out.checkpoint == DType::kI8) out.checkpoint = DType::kBF16;
    return out;
  }
};

// Prefill, one by one and windows with rejected drafts.
TEST_P(PlainBits, EveryModeIsTheSame) {
  const auto ids = random_ids(150, 3);
  const auto one = plain_rig(fixture(GetParam().fixture), options(1));
  Rig& bare = *one;
  const auto want = logits_of(bare.runner(), ids, {.mode = LogitsMode::kDecode});
  EXPECT_EQ(logits_of(bare.runner(), ids, {}), want);
  for (const int32_t window : {2, 3, 5, 8}) {
    const auto rig = plain_rig(fixture(GetParam().fixture), options(window), 2);
    Rig& engine = *rig;
    for (uint64_t seed = 0; seed < 3; ++seed) {
      EXPECT_EQ(logits_of(engine.runner(), ids, {LogitsMode::kVerify, window, seed}), want)
          << "window " << window << ", seed " << seed;
    }
  }
}

TEST_P(PlainBits, SpeculationChangesNothing) {
  const auto prompt = random_ids(11, 2);
  for (const auto& sampling : {ops::SamplerParams{}, ops::SamplerParams{1.0f, 0, 1.0f, 0.0f, 6}}) {
    GenerateParams params;
    params.max_new_tokens = 120;
    params.sampling = sampling;
    const auto one = plain_rig(fixture(GetParam().fixture), options(1));
    Rig& bare = *one;
    const auto want = text_of(bare, nullptr, prompt, params).ids;
    for (const int32_t k : {1, 2, 3, 7}) {
      params.draft_tokens = k;
      const auto rig = plain_rig(fixture(GetParam().fixture), options(k + 1));
      Rig& engine = *rig;
      EXPECT_EQ(text_of(engine, nullptr, prompt, params).ids, want);
      EXPECT_EQ(text_of(engine, make_ngram_drafter().get(), prompt, params).ids, want);
      std::vector<Proposal> proposals;
      for (int i = 0; i < 120; ++i) proposals.push_back({i % (k + 1), i % 5 == 4 ? 0 : k});
      for (auto& p : proposals) p.right = std::min(p.right, p.size);
      const Script script = script_of(want, proposals, k);
      const ScriptFile file(script.json);
      const Text text = text_of(engine, file.drafter().get(), prompt, params);
      EXPECT_EQ(text.ids, want) << "K " << k;
      EXPECT_EQ(text.stats.accepted, script.accepted);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Runtime, PlainBits, testing::ValuesIn(all_types()),
                         [](const auto& info) { return types_name(info.param); });

}  // namespace
}  // namespace replayssm
