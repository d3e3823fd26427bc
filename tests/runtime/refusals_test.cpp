// What the runner and generate() refuse, and that a refusal changes nothing.
#include <limits>

#include "model/safetensors.h"
#include "runtime.h"

namespace replayssm {
namespace {

Window window_of(int32_t sequence, std::span<const int32_t> tokens, bool prefill = false,
                 int32_t n_logits = 0) {
  Window out;
  out.sequence = sequence;
  out.tokens = tokens;
  out.prefill = prefill;
  out.n_logits = n_logits;
  return out;
}

ModelOptions small_options() {
  ModelOptions options;
  options.interval = 8;
  options.max_window = 4;
  return options;
}

Rig engine_of(RunnerLimits limits = {2, 32, 64, 64}) {
  return Rig(fixture("qwen3_5_tied"), small_options(), 1, limits);
}

TEST(Refusals, AllSequencesInUse) {
  Rig engine = engine_of();
  Runner& runner = engine.runner();
  EXPECT_NE(runner.open(), runner.open());
  expect_refusal({"2 sequences"}, [&] { runner.open(); });
  runner.close(1);
  EXPECT_EQ(runner.open(), 1);
}

// Both numbers are named; nothing has happened to any sequence of the pass.
TEST(Refusals, BeyondTheContext) {
  Rig engine = engine_of();
  Runner& runner = engine.runner();
  const auto ids = random_ids(40, 1);
  const int32_t a = runner.open(), b = runner.open();
  const auto all = std::span(ids);
  const Window start[] = {window_of(a, all.first(10), true), window_of(b, all.first(30), true)};
  runner.run(start);
  const Window both[] = {window_of(a, all.subspan(10, 3)), window_of(b, all.subspan(30, 3))};
  expect_refusal({"33", "32"}, [&] { runner.run(both); });
  EXPECT_EQ(runner.n(a), 10);
  EXPECT_EQ(runner.n(b), 30);
  EXPECT_DEATH(runner.advance(a, 1), "advance of 1 with 0 fed");
  const Window whole = window_of(a, all, true);
  expect_refusal({"50", "32"}, [&] { runner.run({&whole, 1}); });
}

TEST(Refusals, PositionsAreUsedToTheLast) {
  Rig engine = engine_of();
  EXPECT_EQ(logits_of(engine.runner(), random_ids(32, 1), {.mode = LogitsMode::kDecode}),
            logits_of(engine.runner(), random_ids(32, 1), {LogitsMode::kVerify, 4, 1}));
  expect_refusal({"the text", "33", "32"},
                 [&] { logits_of(engine.runner(), random_ids(33, 1), {}); });
}

TEST(RefusalsDeathTest, AdvanceOutOfRange) {
  Rig engine = engine_of();
  Runner& runner = engine.runner();
  const auto ids = random_ids(8, 1);
  const auto all = std::span(ids);
  const int32_t a = runner.open();
  EXPECT_DEATH(runner.advance(a, 1), "advance of 1 with 0 fed");
  const Window prompt = window_of(a, all.first(3), true);
  runner.run({&prompt, 1});
  EXPECT_DEATH(runner.advance(a, 1), "advance of 1 with 0 fed");
  const Window window = window_of(a, all.first(3));
  runner.run({&window, 1});
  EXPECT_DEATH(runner.advance(a, -1), "advance of -1 with 3 fed");
  EXPECT_DEATH(runner.advance(a, 4), "advance of 4 with 3 fed");
  runner.advance(a, 1);
  // What did not stand is gone.
  EXPECT_DEATH(runner.advance(a, 1), "advance of 1 with 0 fed");
  EXPECT_EQ(runner.n(a), 4);
  EXPECT_DEATH(runner.advance(1, 0), "sequence 1 of 2 is not open");
  EXPECT_DEATH(runner.advance(7, 0), "sequence 7 of 2 is not open");
  EXPECT_DEATH(runner.close(-1), "sequence -1 of 2 is not open");
  EXPECT_DEATH(runner.close(1), "sequence 1 of 2 is not open");
}

TEST(RefusalsDeathTest, WindowsThatCannotBe) {
  Rig engine = engine_of();
  Runner& runner = engine.runner();
  const auto ids = random_ids(8, 1);
  const auto all = std::span(ids);
  const int32_t a = runner.open(), b = runner.open();
  const auto dies = [&](std::vector<Window> windows, const char* why) {
    EXPECT_DEATH(runner.run(windows), why);
  };
  dies({window_of(a, all.first(2)), window_of(a, all.first(2))}, "two windows of sequence 0");
  dies({window_of(2, all.first(2))}, "sequence 2 of 2 is not open");
  dies({window_of(a, all.first(2)), window_of(b, all.first(1), false, 2)}, "2 logits of 1 tokens");
  dies({window_of(a, all.first(2), false, -1)}, "-1 logits");
  dies({window_of(a, all.first(5))}, "a step to 5");
  Window window = window_of(a, all.first(1));
  window.pending = 1;
  dies({window}, "1 pending of 0 fed");
  window.pending = -1;
  dies({window}, "-1 pending of 0 fed");
  const Window two = window_of(a, all.first(2));
  runner.run({&two, 1});
  window.pending = 3;
  dies({window}, "3 pending of 2 fed");
  window.pending = 2;
  window.prefill = true;
  dies({window}, "a prefill after 2 pending");
  runner.advance(a, 1);
  window.prefill = false;
  window.pending = 1;
  dies({window}, "1 pending of 0 fed");
}

// What was pending when a sequence was closed is not the next one's.
TEST(RefusalsDeathTest, ANewSequenceHasNothingPending) {
  const auto ids = random_ids(3, 1);
  Rig engine = engine_of();
  Runner& runner = engine.runner();
  const Window one = window_of(runner.open(), std::span(ids).first(1));
  runner.run({&one, 1});
  runner.close(0);
  ASSERT_EQ(runner.open(), 0);
  EXPECT_DEATH(runner.advance(0, 1), "advance of 1 with 0 fed");
  runner.run({&one, 1});
  runner.advance(0, 1);
  EXPECT_EQ(runner.n(0), 1);
}

TEST(RefusalsDeathTest, ADrafterServesOneText) {
  Rig engine = engine_of();
  const auto drafter = engine.model_drafter(engine.model(), {});
  const auto ids = random_ids(9, 1);
  EXPECT_EQ(drafter->propose(ids, 3).size(), 3u);
  EXPECT_DEATH(drafter->propose(ids, 3), "has seen 9 tokens, the text has 9");
}

TEST(Refusals, PromptsThatAreNone) {
  Rig engine = engine_of();
  GenerateParams params;
  params.max_new_tokens = 5;
  const auto refuse = [&](const std::vector<int32_t>& prompt,
                          std::initializer_list<std::string> parts) {
    expect_refusal(parts, [&] { text_of(engine, nullptr, prompt, params); });
  };
  refuse({}, {"prompt", "empty"});
  refuse({1, -1}, {"prompt", "-1", "[0, 120)"});
  refuse({1, 120}, {"prompt", "120", "[0, 120)"});
  refuse(random_ids(33, 1), {"prompt", "33", "32"});
  // It fits, but nothing can follow it: no empty text that looks like an answer.
  refuse(random_ids(32, 1), {"prompt", "32", "no room"});
  params.max_new_tokens = 0;
  EXPECT_TRUE(text_of(engine, nullptr, random_ids(32, 1), params).ids.empty());
  expect_refusal({"the text", "empty"}, [&] { logits_of(engine.runner(), {}, {}); });
  expect_refusal({"the text", "120"},
                 [&] { logits_of(engine.runner(), std::vector<int32_t>{120}, {}); });
}

// A copy of a fixture with one weight changed.
std::string with_weight(const TempFolder& folder, const std::string& tensor, float value) {
  folder.copy_fixture("qwen3_5_tied");
  const auto files = TensorFiles::open_folder(fixture("qwen3_5_tied"));
  std::vector<float> data = read_fp32(files.at(tensor));
  data[data.size() / 2] = value;
  std::vector<TensorToWrite> out;
  for (const auto& view : files.tensors()) {
    out.push_back({view.name, view.dtype, view.shape,
                   view.name == tensor ? static_cast<const void*>(data.data()) : view.data});
  }
  write_safetensors(folder.file("model.safetensors"), out);
  return folder.path();
}

TEST(Refusals, LogitsThatAreNotFinite) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const TempFolder folder;
    Rig engine(with_weight(folder, "model.norm.weight", value), small_options(), 1,
               {1, 64, 64, 64});
    GenerateParams params;
    for (const float temperature : {0.0f, 1.0f}) {
      params.sampling.temperature = temperature;
      // Twice: the slot came back.
      for (int i = 0; i < 2; ++i) {
        expect_refusal({"NaN", "12"}, [&] { text_of(engine, nullptr, random_ids(12, 1), params); });
      }
    }
  }
}

// A drafter whose logits are not finite drafts nothing, or what it likes; the text stands.
TEST(Refusals, ABrokenDrafterDoesNoHarm) {
  Rig engine = engine_of();
  GenerateParams params;
  params.max_new_tokens = 20;
  const auto prompt = random_ids(7, 1);
  const Text want = text_of(engine, nullptr, prompt, params);
  for (const char* tensor : {"model.norm.weight", "model.embed_tokens.weight"}) {
    const TempFolder folder;
    const auto broken = Model::load(
        with_weight(folder, tensor, std::numeric_limits<float>::quiet_NaN()), small_options());
    const auto drafter = engine.model_drafter(broken, {});
    EXPECT_EQ(text_of(engine, drafter.get(), prompt, params).ids, want.ids);
  }
}

TEST(Refusals, MoreMemoryThanThereIs) {
  const auto take = [](RunnerLimits limits) { return [limits] { engine_of(limits); }; };
  expect_refusal({"17179869184 tokens", "MiB"}, take({1, int64_t{1} << 34, 64, 64}));
  expect_refusal({"1000000000 sequences", "MiB"}, take({1'000'000'000, 512, 64, 64}));
  expect_refusal({"at least one"}, take({0, 512, 64, 64}));
  expect_refusal({"at least one"}, take({1, 0, 64, 64}));
}

}  // namespace
}  // namespace replayssm
