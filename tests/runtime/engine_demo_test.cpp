// The demo models with everything on at once: many clients, drafts of a model, the prefix cache,
// choices, preemption and cancels; every answer is what one request alone gets.
#include <atomic>
#include <thread>

#include "engine.h"

namespace replayssm {
namespace {

constexpr int32_t kDemoVocab = 4096;

struct DemoCase {
  const char* name;
  const char* folder;
  DType checkpoint;
  DraftMode draft;
};

class Demo : public testing::TestWithParam<DemoCase> {
 protected:
  static ModelOptions model_options(DType checkpoint) {
    ModelOptions options;
    options.max_window = 5;
    options.checkpoint = checkpoint;
    return options;
  }
  std::unique_ptr<Bench> bench() const {
    EngineOptions o;
    o.memory_bytes = int64_t{256} << 20;
    o.max_positions = 1024;
    o.max_sequences = 8;
    o.max_queued = 1000;
    o.chunk_tokens = 128;
    o.snapshot_interval = 64;
    o.message_end_ids = {9};
    o.draft = GetParam().draft;
    if (o.draft == DraftMode::kModel) {
      o.draft_model = load_model(demo("demo-draft"), model_options(DType::kF16));
    }
    return std::make_unique<Bench>(demo(GetParam().folder), model_options(GetParam().checkpoint), o,
                                   2);
  }
  // Some with common beginnings, greedy and sampled.
  static std::vector<GenerationRequest> requests() {
    std::vector<GenerationRequest> out;
    for (uint64_t i = 0; i < 16; ++i) {
      // The last is longer than what a draft model reads in a step.
      auto prompt = some_ids(i == 15 ? 700 : 30 + 40 * (i % 4), i % 4, kDemoVocab);
      const auto tail = some_ids(1 + 7 * i, 100 + i, kDemoVocab);
      prompt.insert(prompt.end(), tail.begin(), tail.end());
      out.push_back(request_of(std::move(prompt), 50));
      out.back().sampling.temperature = i % 2 == 0 ? 0.0f : 0.7f;
      out.back().sampling.top_p = 0.95f;
      out.back().sampling.seed = i;
    }
    return out;
  }
};

TEST_P(Demo, EightAtOnceWithEverythingOn) {
  const auto b = bench();
  const auto all = requests();
  std::vector<std::vector<int32_t>> want;
  for (const auto& request : all) want.push_back(b->alone(request));
  for (int round = 0; round < 2; ++round) {
    std::vector<Sent> sent;
    for (const auto& request : all) sent.push_back(b->send(request));
    for (size_t i = 0; i < sent.size(); i += 3) b->engine().preempt(sent[i].id);
    for (size_t i = 0; i < sent.size(); ++i) {
      sent[i].client->wait();
      EXPECT_EQ(sent[i].client->ids(), want[i]) << round << " " << i;
    }
    b->expect_quiet();
  }
  const EngineStats stats = b->engine().stats();
  EXPECT_GT(stats.cached_tokens, 0);
  if (GetParam().draft != DraftMode::kNone) {
    EXPECT_GT(stats.accepted, 0);
  }
}

// Clients that come and go; what they got is a beginning of what they would have got.
TEST_P(Demo, ManyClientsThatComeAndGo) {
  const auto b = bench();
  const auto all = requests();
  std::vector<std::vector<int32_t>> want;
  for (const auto& request : all) want.push_back(b->alone(request));
  std::vector<std::thread> threads;
  std::atomic<int64_t> wrong{0};
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 rng(t);
      for (int i = 0; i < 25; ++i) {
        const size_t which = rng() % all.size();
        const Sent sent = b->send(all[which]);
        const bool cancels = rng() % 3 == 0;
        if (cancels) {
          sent.client->wait_for_tokens(rng() % 20);
          b->engine().cancel(sent.id);
        }
        sent.client->wait();
        const auto& got = sent.client->ids();
        const bool begins = got.size() <= want[which].size() &&
                            std::equal(got.begin(), got.end(), want[which].begin());
        if (!begins || (!cancels && got != want[which])) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  b->expect_quiet();
}

INSTANTIATE_TEST_SUITE_P(
    Runtime, Demo,
    testing::Values(DemoCase{"gdn_fp16_model", "demo-gdn", DType::kF16, DraftMode::kModel},
                    DemoCase{"gdn_fp32_ngram", "demo-gdn", DType::kF32, DraftMode::kNgram},
                    DemoCase{"mamba2_fp16_model", "demo-mamba2", DType::kF16, DraftMode::kModel},
                    DemoCase{"mamba2_fp32", "demo-mamba2", DType::kF32, DraftMode::kNone}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace replayssm
