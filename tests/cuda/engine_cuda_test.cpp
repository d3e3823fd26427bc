// The serving engine on the device, in the exact mode: what a request answers depends on the
// request alone. NaN fills what is free.
#include "../runtime/engine.h"
#include "runtime/cuda/backend_cuda.h"

namespace replayssm {
namespace {

struct Way {
  const char* model;
  std::optional<DType> checkpoint;  // absent: the model's own
};

class CudaEngine : public ::testing::TestWithParam<Way> {
 protected:
  static ModelOptions model_options() {
    ModelOptions options;
    options.checkpoint = GetParam().checkpoint;
    options.max_window = 8;
    return options;
  }
  static EngineOptions engine_options() {
    EngineOptions options;
    options.memory_bytes = int64_t{600} << 20;
    options.max_positions = 1024;
    options.max_sequences = 8;
    options.chunk_tokens = 128;
    options.snapshot_interval = 64;
    return options;
  }
  static std::unique_ptr<Device> open(const ops::Context&) { return cuda_device(/*exact=*/true); }
  GenerationRequest request(size_t n_prompt, int64_t n_new, uint64_t seed = 1) {
    const auto vocab = static_cast<int32_t>(bench_.model()->spec().vocab);
    GenerationRequest out = request_of(some_ids(n_prompt, seed, vocab), n_new);
    out.logprobs = 3;
    return out;
  }
  std::string hash_of(const Sent& sent) { return bench_.final_state(sent.id).hash; }

  Bench bench_{demo(GetParam().model), model_options(), engine_options(), 1, open};
};

// Greedy and drawn, on the device and (with logprobs) on the host, by every drafter: the tokens,
// their logprobs and the state.
TEST_P(CudaEngine, DraftsChangeNothing) {
  bench_.options().draft_model = bench_.device().load(demo("demo-draft"), model_options());
  bench_.options().draft_tokens = 7;
  bench_.options().adaptive_drafts = false;
  bench_.options().prefix_cache = false;
  bench_.restart();
  std::vector<std::vector<int32_t>> texts;
  for (const int way : {0, 1, 2, 3}) {
    GenerationRequest asked = request(90, 60);
    asked.logprobs = way % 2 == 0 ? 3 : -1;
    asked.sampling.temperature = way < 2 ? 0.0f : 0.8f;
    asked.sampling.seed = 5;
    const Sent want = bench_.ask(asked);
    texts.push_back(want.client->ids());
    for (const DraftMode mode : {DraftMode::kNgram, DraftMode::kModel}) {
      asked.draft = mode;
      const Sent drafted = bench_.ask(asked);
      EXPECT_EQ(drafted.client->answer(), want.client->answer());
      EXPECT_EQ(hash_of(drafted), hash_of(want));
      if (mode == DraftMode::kModel) {
        EXPECT_GT(drafted.client->usage().drafted, 0);
      }
    }
    // Right ones and wrong ones.
    const auto& ids = want.client->ids();
    for (size_t at = 1; at + 5 < ids.size(); at += 3) {
      std::vector<int32_t> drafts(ids.begin() + static_cast<ptrdiff_t>(at),
                                  ids.begin() + static_cast<ptrdiff_t>(at) + 5);
      if (at % 2 == 0) drafts[at % 5] = (drafts[at % 5] + 1) % 100;
      asked.scripted_drafts.push_back(drafts);
    }
    const Sent scripted = bench_.ask(asked);
    EXPECT_EQ(scripted.client->answer(), want.client->answer());
    EXPECT_EQ(hash_of(scripted), hash_of(want));
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[2], texts[3]);
  EXPECT_NE(texts[0], texts[2]);
}

// Alone in whole prompts, and eight at once in small chunks and with drafts.
TEST_P(CudaEngine, BatchAndChunksChangeNothing) {
  constexpr size_t kLengths[] = {1, 15, 16, 17, 130, 257, 400, 33};
  bench_.options().prefix_cache = false;
  bench_.options().chunk_tokens = 1024;
  bench_.restart();
  std::vector<Client::Answer> want;
  std::vector<std::string> hashes;
  for (size_t i = 0; i < std::size(kLengths); ++i) {
    const Sent sent = bench_.ask(request(kLengths[i], 40, i));
    want.push_back(sent.client->answer());
    hashes.push_back(hash_of(sent));
  }
  bench_.options().chunk_tokens = 64;
  bench_.options().draft = DraftMode::kNgram;
  bench_.options().draft_tokens = 5;
  bench_.restart();
  std::vector<Sent> sent;
  for (size_t i = 0; i < std::size(kLengths); ++i) {
    sent.push_back(bench_.send(request(kLengths[i], 40, i)));
  }
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i].client->wait();
    EXPECT_EQ(sent[i].client->answer(), want[i]) << i;
    EXPECT_EQ(hash_of(sent[i]), hashes[i]) << i;
  }
  bench_.expect_quiet();
}

// A hit inside a text, choices that share a prompt, memory taken away, and files.
TEST_P(CudaEngine, WhatIsRestoredIsWhatWasComputed) {
  bench_.options().prefix_cache = false;
  bench_.restart();
  const GenerationRequest asked = request(300, 30);
  GenerationRequest longer = asked, edited = asked, forked = asked;
  longer.prompt.insert(longer.prompt.end(), {7, 8, 9, 10, 11});
  edited.prompt[290] = (edited.prompt[290] + 1) % 50;
  forked.n = 3;
  forked.sampling.temperature = 1;
  const std::vector<GenerationRequest> requests = {asked, longer, edited, forked};
  std::vector<std::map<int32_t, Client::Answer>> want;
  for (const auto& r : requests) want.push_back(bench_.ask(r).client->answers());

  const TempFolder folder;
  bench_.options().prefix_cache = true;
  bench_.options().cache_folder = folder.path();
  bench_.restart();
  bench_.ask(asked);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Sent warm = bench_.ask(requests[i]);
    EXPECT_EQ(warm.client->answers(), want[i]) << i;
    EXPECT_GE(warm.client->usage().cached_tokens, 256) << i;
  }
  auto client = std::make_shared<Client>();
  RequestId id = 0;
  client->on_tokens = [&, n = size_t{0}](std::span<const TokenEvent> events) mutable {
    n += events.size();
    if (n == 9 || n == 20) bench_.engine().preempt(id);
    return events.size();
  };
  EXPECT_FALSE(bench_.engine().submit(longer, client, &id).has_value());
  client->wait();
  EXPECT_EQ(client->answers(), want[1]);
  EXPECT_GT(client->usage().preemptions, 0);

  bench_.restart();
  const Sent again = bench_.ask(asked);
  EXPECT_EQ(again.client->answers(), want[0]);
  EXPECT_GE(again.client->usage().cached_tokens, 256);
  EXPECT_EQ(bench_.engine().stats().refused_corrupt, 0);
}

// As long as both say the same.
TEST_P(CudaEngine, SaysWhatTheCpuSays) {
  const Sent cuda = bench_.ask(request(100, 24));
  Bench cpu_bench(demo(GetParam().model), model_options(), engine_options());
  const Sent cpu = cpu_bench.ask(request(100, 24));
  const auto &a = cuda.client->answer(), &b = cpu.client->answer();
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  double worst = 0;
  size_t same = 0;
  for (; same < a.ids.size() && (same == 0 || a.ids[same - 1] == b.ids[same - 1]); ++same) {
    worst =
        std::max(worst, std::abs(a.logprobs[same].top[0].second - b.logprobs[same].top[0].second));
  }
  EXPECT_LE(worst, 0.25);
  std::printf("%s: %.3f apart at most over %zu tokens\n", GetParam().model, worst, same);
}

TEST_P(CudaEngine, BudgetThatHoldsNothing) {
  bench_.options().memory_bytes = int64_t{20} << 20;
  EXPECT_THROW(bench_.restart(), Error);
}

INSTANTIATE_TEST_SUITE_P(Demo, CudaEngine,
                         ::testing::Values(Way{"demo-gdn", {}}, Way{"demo-gdn", DType::kI8},
                                           Way{"demo-mamba2", {}},
                                           Way{"demo-mamba2", DType::kF32}));

}  // namespace
}  // namespace replayssm
