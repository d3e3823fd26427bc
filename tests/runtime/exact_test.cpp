// The demo models: prefill, decode and verify give the same logits, to the bit, for each grid and
// checkpoint dtype. One pass of 200 tokens holds all prefixes; then every length alone.
#include "runtime.h"

namespace replayssm {
namespace {

struct Case {
  const char* model;
  int32_t interval;
  DType checkpoint;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* model : {"demo-gdn", "demo-mamba2"}) {
    for (const int32_t interval : {8, 16, 32}) {
      for (const DType checkpoint : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
        out.push_back({model, interval, checkpoint});
      }
    }
  }
  return out;
}

class Exact : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::string folder = std::string(REPLAYSSM_SOURCE_DIR "/models/") + GetParam().model;
    SKIP_IF_REFUSED(folder, options());
    engine_.emplace(folder, options(), 2, RunnerLimits{1, 256, 128, 128});
  }

  static ModelOptions options() {
    ModelOptions options;
    options.interval = GetParam().interval;
    options.checkpoint = GetParam().checkpoint;
    options.max_window = 8;
    return options;
  }
  std::vector<int32_t> ids(size_t n) const {
    std::mt19937_64 rng(GetParam().interval);
    std::vector<int32_t> out(n);
    for (auto& id : out)
      id = static_cast<int32_t>(rng() % static_cast<uint64_t>(engine_->model()->spec().vocab));
    return out;
  }

  std::optional<Rig> engine_;
};

TEST_P(Exact, TwoHundredTokens) {
  const auto text = ids(200);
  const auto want = logits_of(engine_->runner(), text, {});
  EXPECT_TRUE(logits_of(engine_->runner(), text, {.mode = LogitsMode::kDecode}) == want);
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_TRUE(logits_of(engine_->runner(), text, {LogitsMode::kVerify, 8, seed}) == want)
        << "reject seed " << seed;
  }
}

TEST_P(Exact, EveryLength) {
  const auto text = ids(static_cast<size_t>(3 * GetParam().interval + 3));
  const auto want = logits_of(engine_->runner(), text, {});
  for (size_t size = 1; size <= text.size(); ++size) {
    const auto part = std::span(text).first(size);
    for (const LogitsMode mode : {LogitsMode::kPrefill, LogitsMode::kDecode, LogitsMode::kVerify}) {
      const auto got = logits_of(engine_->runner(), part, {mode, 8, 1});
      ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin()))
          << "length " << size << ", mode " << static_cast<int>(mode);
    }
  }
}

// The text of the trained models, greedy and sampled: the same for every drafter. The small draft
// model is right often, the model itself always.
TEST(Demo, DraftsChangeNothing) {
  const std::string models = REPLAYSSM_SOURCE_DIR "/models/";
  for (const char* name : {"demo-gdn", "demo-mamba2"}) {
    for (const float temperature : {0.0f, 0.8f}) {
      SCOPED_TRACE(testing::Message() << name << ", temperature " << temperature);
      ModelOptions options;
      options.max_window = 6;
      Rig engine(models + name, options, 2);
      const auto draft_model = Model::load(models + "demo-draft", options);
      GenerateParams params;
      params.draft_tokens = 5;
      params.max_new_tokens = 200;
      params.sampling = {.temperature = temperature, .top_k = 50, .seed = 9};
      const std::vector<int32_t> prompt = {400, 1200, 31, 32, 33, 900};
      const Text want = text_of(engine, nullptr, prompt, params);
      EXPECT_EQ(text_of(engine, make_ngram_drafter().get(), prompt, params).ids, want.ids);
      const auto small = engine.model_drafter(draft_model, params.sampling);
      const Text drafted = text_of(engine, small.get(), prompt, params);
      EXPECT_EQ(drafted.ids, want.ids);
      EXPECT_GT(10 * drafted.stats.accepted, drafted.stats.drafted);
      const auto twin = engine.model_drafter(engine.model(), params.sampling);
      const Text sure = text_of(engine, twin.get(), prompt, params);
      EXPECT_EQ(sure.ids, want.ids);
      EXPECT_EQ(sure.stats.accepted, sure.stats.drafted);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Demo, Exact, testing::ValuesIn(cases()), [](const auto& info) {
  const std::string name = std::string(info.param.model) == "demo-gdn" ? "gdn" : "mamba2";
  return name + "_B" + std::to_string(info.param.interval) + "_" +
         dtype_name(info.param.checkpoint);
});

}  // namespace
}  // namespace replayssm
