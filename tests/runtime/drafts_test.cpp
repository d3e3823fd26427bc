// The text does not depend on who drafts, how much, or how many threads there are: ids equal.
#include <deque>

#include "runtime.h"
#include "runtime/model_drafts.h"

namespace replayssm {
namespace {

constexpr int64_t kNew = 90;

struct Case {
  Types types;
  int32_t interval;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Types& types : all_types()) {
    for (const int32_t interval : {8, 16, 32}) out.push_back({types, interval});
  }
  return out;
}

std::vector<ops::SamplerParams> samplings() {
  return {{},
          {.temperature = 1.0f, .seed = 11},
          {.temperature = 0.7f, .top_k = 12, .seed = 1ull << 40},
          {.temperature = 1.3f, .top_p = 0.8f, .seed = 3},
          {.temperature = 0.9f, .top_k = 30, .top_p = 0.9f, .min_p = 0.05f, .seed = 4}};
}

GenerateParams params_of(const ops::SamplerParams& sampling, int32_t draft_tokens) {
  GenerateParams params;
  params.max_new_tokens = kNew;
  params.draft_tokens = draft_tokens;
  params.sampling = sampling;
  return params;
}

class Drafts : public testing::TestWithParam<Case> {
 protected:
  const Types& types() const { return GetParam().types; }
  int32_t interval() const { return GetParam().interval; }
  bool gdn() const { return std::string(types().fixture).starts_with("qwen"); }

  // Another model of the same vocabulary: of the other family.
  std::shared_ptr<const Model> stranger(int32_t max_window) const {
    ModelOptions options;
    options.interval = interval();
    options.max_window = max_window;
    return Model::load(fixture(gdn() ? "nemotron_h_names" : "qwen3_5_vlm"), options);
  }

  const std::vector<int32_t> prompt_ = random_ids(21, 5);
};

TEST_P(Drafts, TextIsTheSame) {
  for (const auto& sampling : samplings()) {
    Rig bare(types(), interval(), 1);
    const Text want = text_of(bare, nullptr, prompt_, params_of(sampling, 0));
    ASSERT_EQ(std::ssize(want.ids), kNew);
    EXPECT_EQ(want.stats.steps, kNew - 1);
    EXPECT_EQ(want.stats.drafted, 0);
    std::mt19937_64 rng(sampling.seed + 1);
    for (int32_t k = 1; k <= 7; ++k) {
      const int n_threads = k == 3 || k == 6 ? 2 : 1;
      const auto label = testing::Message() << "temperature " << sampling.temperature << ", K " << k
                                            << ", " << n_threads << " threads";
      SCOPED_TRACE(label);
      Rig engine(types(), interval(), k + 1, n_threads);
      const GenerateParams params = params_of(sampling, k);
      EXPECT_EQ(text_of(engine, nullptr, prompt_, params).ids, want.ids);

      const Text ngram = text_of(engine, make_ngram_drafter().get(), prompt_, params);
      EXPECT_EQ(ngram.ids, want.ids);
      EXPECT_EQ(ngram.stats.steps + ngram.stats.accepted, kNew - 1);

      std::vector<Proposal> proposals;
      for (int i = 0; i < 60; ++i) {
        const auto size = static_cast<int64_t>(rng() % static_cast<uint64_t>(k + 1));
        proposals.push_back({static_cast<int64_t>(rng() % static_cast<uint64_t>(size + 1)), size});
      }
      const Script script = script_of(want.ids, proposals, k);
      const ScriptFile file(script.json);
      const Text scripted = text_of(engine, file.drafter().get(), prompt_, params);
      EXPECT_EQ(scripted.ids, want.ids);
      EXPECT_EQ(scripted.stats.steps, script.steps);
      EXPECT_EQ(scripted.stats.drafted, script.drafted);
      EXPECT_EQ(scripted.stats.accepted, script.accepted);

      const auto other = engine.model_drafter(stranger(k + 1), sampling);
      const Text strange = text_of(engine, other.get(), prompt_, params);
      EXPECT_EQ(strange.ids, want.ids);
      EXPECT_GT(strange.stats.drafted, 0);
      // Draws share their noise, so that even strangers agree now and then.
      const int64_t right = strange.stats.accepted * (sampling.temperature > 0 ? 1 : 2);
      EXPECT_LT(right, strange.stats.drafted);
    }
  }
}

// A drafter that is the target draws what the target draws: every draft stands, so its pending
// rows, their folds and their roll-backs are right to the bit, across the grid and round the ring.
TEST_P(Drafts, TheTargetItselfIsNeverWrong) {
  for (const auto& sampling : samplings()) {
    for (const int32_t k : {1, 2, 3, 5, 7}) {
      SCOPED_TRACE(testing::Message() << "temperature " << sampling.temperature << ", K " << k);
      Rig engine(types(), interval(), k + 1);
      GenerateParams params = params_of(sampling, k);
      params.max_new_tokens = 300;
      const Text want = text_of(engine, nullptr, prompt_, params);
      const auto twin = engine.model_drafter(engine.model(), sampling);
      const Text text = text_of(engine, twin.get(), prompt_, params);
      EXPECT_EQ(text.ids, want.ids);
      EXPECT_EQ(text.stats.accepted, text.stats.drafted);
      EXPECT_EQ(text.stats.steps, (300 - 1 + k) / (k + 1));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Runtime, Drafts, testing::ValuesIn(cases()), [](const auto& info) {
  return types_name(info.param.types) + "_B" + std::to_string(info.param.interval);
});

// A drafter that was right, then wrong, then right: what it fed after the wrong draft is rolled
// back, in the drafter too. A stop id, drafted or not, ends the text at the same place.
TEST(Drafts, StopIdsEndTheTextAtTheSamePlace) {
  for (const Types& types : all_types()) {
    SCOPED_TRACE(types_name(types));
    const ops::SamplerParams sampling{.temperature = 1.0f, .seed = 8};
    Rig engine(types, 16, 6);
    GenerateParams params = params_of(sampling, 5);
    const auto prompt = random_ids(9, 1);
    const Text whole = text_of(engine, nullptr, prompt, params);
    for (const size_t at : {0, 1, 2, 7, 30, 88, 89}) {
      params.stop_ids = {whole.ids[at]};
      const auto first = std::find(whole.ids.begin(), whole.ids.end(), whole.ids[at]);
      const std::vector<int32_t> want(whole.ids.begin(), first);
      const Text bare = text_of(engine, nullptr, prompt, params);
      EXPECT_EQ(bare.ids, want);
      const auto twin = engine.model_drafter(engine.model(), sampling);
      const Text drafted = text_of(engine, twin.get(), prompt, params);
      EXPECT_EQ(drafted.ids, want);
      EXPECT_LE(drafted.stats.steps, bare.stats.steps);
    }
  }
}

// As many tokens as asked for, whatever is drafted past them, and never past the context.
TEST(Drafts, LengthIsExact) {
  const Types types = all_types()[0];
  const auto prompt = random_ids(30, 2);
  for (const int64_t n : {0, 1, 2, 3, 4, 5, 6, 17}) {
    Rig engine(types, 8, 5);
    GenerateParams params = params_of({}, 4);
    params.max_new_tokens = n;
    const auto twin = engine.model_drafter(engine.model(), {});
    EXPECT_EQ(std::ssize(text_of(engine, twin.get(), prompt, params).ids), n);
  }
  for (const int64_t context : {31, 32, 33, 36, 47, 48, 49}) {
    Rig engine(fixture(types.fixture), options_of(types, 8, 5), 1, {1, context, 16, 16});
    const GenerateParams params = params_of({}, 4);
    const Text bare = text_of(engine, nullptr, prompt, params);
    EXPECT_EQ(std::ssize(bare.ids), context - 30);
    const auto twin = engine.model_drafter(engine.model(), {});
    EXPECT_EQ(text_of(engine, twin.get(), prompt, params).ids, bare.ids);
    EXPECT_EQ(text_of(engine, make_ngram_drafter().get(), prompt, params).ids, bare.ids);
  }
}

// A long prompt, in passes of any size, to the target and to its drafter.
TEST(Drafts, PromptPassesDoNotMatter) {
  for (const Types& types : all_types()) {
    SCOPED_TRACE(types_name(types));
    const auto prompt = random_ids(300, 6);
    GenerateParams params = params_of({.temperature = 1.0f, .seed = 5}, 4);
    params.max_new_tokens = 40;
    Rig whole(fixture(types.fixture), options_of(types, 16, 5), 1, {1, 512, 300, 8});
    const Text want = text_of(whole, nullptr, prompt, params);
    for (const int64_t max_tokens : {5, 16, 64, 256}) {
      Rig engine(fixture(types.fixture), options_of(types, 16, 5), 2, {1, 512, max_tokens, 8});
      EXPECT_EQ(text_of(engine, nullptr, prompt, params).ids, want.ids);
      const auto twin = engine.model_drafter(engine.model(), params.sampling);
      const Text text = text_of(engine, twin.get(), prompt, params);
      EXPECT_EQ(text.ids, want.ids);
      EXPECT_EQ(text.stats.accepted, text.stats.drafted);
    }
  }
}

// Whatever stood of its drafts, a drafter goes on as a fresh one would that reads the same text.
TEST(Drafts, ADrafterForgetsWhatDidNotStand) {
  for (const Types& types : all_types()) {
    SCOPED_TRACE(types_name(types));
    const ops::SamplerParams sampling{.temperature = 1.0f, .seed = 12};
    Rig engine(types, 8, 6);
    auto tokens = random_ids(5, 3);
    const auto drafter = engine.model_drafter(engine.model(), sampling);
    std::mt19937_64 rng(4);
    for (int step = 0; step < 30; ++step) {
      const auto k = static_cast<int32_t>(1 + rng() % 5);
      const auto drafts = drafter->propose(tokens, k);
      ASSERT_EQ(drafts, engine.model_drafter(engine.model(), sampling)->propose(tokens, k)) << step;
      const auto stand = static_cast<int64_t>(rng() % (drafts.size() + 1));
      tokens.insert(tokens.end(), drafts.begin(), drafts.begin() + stand);
      const auto others = random_ids(1 + rng() % 4, rng());
      tokens.insert(tokens.end(), others.begin(), others.end());
    }
  }
}

// The memory of one snapshot, and three sequences that all leave a shared checkpoint in one pass.
TEST(Drafts, SharedCheckpointsNeedNoMoreMemory) {
  for (const Types& types : all_types()) {
    SCOPED_TRACE(types_name(types));
    Rig engine(fixture(types.fixture), options_of(types, 8, 6), 1,
               {.max_sequences = 3, .max_positions = 64, .snapshots = 1, .snapshot_pages = 1});
    Rig alone(fixture(types.fixture), options_of(types, 8, 6), 1, {1, 64, 256, 8});
    Runner& runner = engine.runner();
    const auto one = random_ids(16, 1), two = random_ids(16, 2);
    const auto run = [](Runner& on,
                        std::vector<std::pair<int32_t, std::span<const int32_t>>> parts) {
      std::vector<Window> windows;
      for (const auto& [sequence, tokens] : parts)
        windows.push_back({sequence, tokens, 0, true, 1});
      const float* logits = on.run(windows);
      return std::vector<float>(logits, logits + std::ssize(parts) * kVocab);
    };
    const auto first = [](const std::vector<int32_t>& text) { return std::span(text).first(8); };
    const auto last = [](const std::vector<int32_t>& text) { return std::span(text).last(8); };
    const int32_t c = runner.open(), a = runner.open(), b = runner.open();
    run(runner, {{c, first(one)}, {a, first(two)}});
    runner.keep(c, one);
    runner.keep(a, two);
    runner.resume(b, two, 15);
    ASSERT_EQ(runner.n(b), 8);
    const auto got = run(runner, {{c, last(one)}, {a, last(two)}, {b, last(two)}});
    std::vector<float> want;
    for (const auto* text : {&one, &two, &two}) {
      const OpenSequence sequence(alone.runner());
      const auto logits = run(alone.runner(), {{sequence.id(), *text}});
      want.insert(want.end(), logits.begin(), logits.end());
    }
    EXPECT_EQ(got, want);
  }
}

// A text that begins as one before is not read again up to the last cut point of that beginning; it
// is drafted for as by a drafter that read all of it, however few snapshots there is room for.
TEST(Drafts, WhatWasReadIsNotReadAgain) {
  for (const Types& types : all_types()) {
    for (const int32_t snapshots : {1, 3, 40}) {
      SCOPED_TRACE(types_name(types) + " " + std::to_string(snapshots));
      const ops::SamplerParams sampling{.temperature = 1.0f, .seed = 12};
      Rig engine(types, 8, 6);
      RunnerLimits limits = ModelDrafts::limits(3, 512);
      limits.snapshots = snapshots;
      limits.snapshot_pages = snapshots * 3;
      ModelDrafts drafts(engine.model(), *cpu_device(engine.context()), engine.context(), limits,
                         {.grid = 8, .interval = 40, .message_end_ids = {}});
      std::mt19937_64 rng(4);
      for (uint64_t turn = 0; turn < 8; ++turn) {
        // Three texts at once that part after 200 tokens, from each other and from those before.
        std::vector<std::vector<int32_t>> texts(3, random_ids(200, 9));
        std::deque<ModelDrafts::Text> states;
        std::vector<std::unique_ptr<Drafter>> fresh;
        for (auto& text : texts) {
          const auto tail = random_ids(1 + rng() % 20, rng());
          text.insert(text.end(), tail.begin(), tail.end());
          states.emplace_back(drafts);
          fresh.push_back(engine.model_drafter(engine.model(), sampling));
        }
        // With room for all snapshots, only what parts is new.
        const int64_t most_unseen = turn == 0 || snapshots < 40 ? 1024 : 3 * 24;
        for (int step = 0; step < 12; ++step) {
          std::vector<ModelDrafts::Job> jobs;
          for (size_t i = 0; i < 3; ++i) {
            jobs.push_back({&states[i], texts[i], 1 + static_cast<int32_t>(rng() % 5), sampling});
          }
          const auto asked = jobs;
          drafts.propose(jobs, most_unseen);
          for (size_t i = 0; i < 3; ++i) {
            const auto proposed = ModelDrafts::drafts(states[i]);
            EXPECT_EQ(proposed, fresh[i]->propose(texts[i], asked[i].k))
                << turn << " " << step << " " << i;
            const auto stand = static_cast<int64_t>(rng() % (proposed.size() + 1));
            texts[i].insert(texts[i].end(), proposed.begin(), proposed.begin() + stand);
            const auto others = random_ids(1 + rng() % 4, rng());
            texts[i].insert(texts[i].end(), others.begin(), others.end());
          }
        }
      }
    }
  }
}

// A drafter whose context is shorter than the text falls silent.
TEST(Drafts, ShortDrafterFallsSilent) {
  const Types types = all_types()[4];
  Rig engine(types, 8, 5);
  const auto prompt = random_ids(30, 3);
  const GenerateParams params = params_of({}, 4);
  const Text bare = text_of(engine, nullptr, prompt, params);
  for (const int64_t context : {20, 30, 31, 33, 60}) {
    const auto drafter = make_model_drafter(engine.model(), *cpu_device(engine.context()),
                                            engine.context(), context, {});
    const Text text = text_of(engine, drafter.get(), prompt, params);
    EXPECT_EQ(text.ids, bare.ids);
    EXPECT_EQ(text.stats.accepted, text.stats.drafted);
    EXPECT_LE(text.stats.drafted, std::max<int64_t>(0, context - 30));
  }
}

TEST(Drafts, NgramLooksUpTheLongestLatestSuffix) {
  const auto drafter = make_ngram_drafter();
  const auto propose = [&](std::vector<int32_t> tokens, int32_t k) {
    return drafter->propose(tokens, k);
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(propose({1}, 4), Ids{});
  EXPECT_EQ(propose({1, 2, 3, 4}, 4), Ids{});
  EXPECT_EQ(propose({1, 2, 9, 1}, 4), Ids{});                        // one token is too few
  EXPECT_EQ(propose({1, 2, 9, 8, 1, 2}, 4), (Ids{9, 8, 1, 2}));      // all that followed
  EXPECT_EQ(propose({1, 2, 9, 8, 1, 2}, 2), (Ids{9, 8}));            // at most k
  EXPECT_EQ(propose({1, 2, 9, 1, 2, 8, 1, 2}, 1), Ids{8});           // the latest
  EXPECT_EQ(propose({5, 1, 2, 9, 6, 1, 2, 8, 5, 1, 2}, 1), Ids{9});  // the longest
  EXPECT_EQ(propose({7, 7, 7}, 4), (Ids{7, 7, 7, 7}));               // repeats go on
  EXPECT_EQ(propose({3, 1, 2, 9, 4, 1, 2, 8, 1, 2}, 4), (Ids{8, 1, 2, 8}));
  EXPECT_EQ(drafter->bytes(), 0);
}

}  // namespace
}  // namespace replayssm
