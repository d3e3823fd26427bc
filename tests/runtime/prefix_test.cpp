// What the prefix cache gives back is what would have been computed, and as much of it as the cut
// points promise.
#include "engine.h"

namespace replayssm {
namespace {

const int32_t kGrid = device_intervals().front();
constexpr int64_t kCut = 32;  // snapshot_interval
constexpr int32_t kMessageEnd = 7;

struct PrefixCase {
  const char* name;
  const char* folder;
  std::optional<DType> checkpoint;
};

class Prefix : public testing::TestWithParam<PrefixCase> {
 protected:
  static EngineOptions options() {
    EngineOptions o = small_options();
    o.message_end_ids = {kMessageEnd};
    return o;
  }
  void SetUp() override { SKIP_IF_REFUSED(fixture(GetParam().folder), model_options()); }
  static ModelOptions model_options() {
    ModelOptions model;
    model.interval = kGrid;
    model.max_window = 4;
    model.checkpoint = GetParam().checkpoint;
    return model;
  }
  std::unique_ptr<Bench> bench(EngineOptions options) const {
    return std::make_unique<Bench>(fixture(GetParam().folder), model_options(), std::move(options));
  }
  std::unique_ptr<Bench> cold_bench() const {
    EngineOptions o = options();
    o.prefix_cache = false;
    return bench(o);
  }
  static GenerationRequest request(std::vector<int32_t> prompt, int64_t n = 3) {
    GenerationRequest r = request_of(std::move(prompt), n);
    r.logprobs = 3;
    return r;
  }
  static std::string hash(Bench& b, const Sent& sent) { return b.final_state(sent.id).hash; }
  // Without message ends: the longest cut point that leaves a token of n.
  static int64_t expected(int64_t n) {
    int64_t best = 0;
    for (int64_t cut = kGrid; cut < n; cut += kGrid) {
      if ((cut & (cut - 1)) == 0 || cut % kCut == 0) best = cut;
    }
    return best;
  }
};

TEST_P(Prefix, EveryLengthTwiceIsWarmAsCold) {
  const auto cold = cold_bench();
  const auto warm = bench(options());
  for (int64_t n = 1; n <= 4 * kCut + 3; ++n) {
    auto prompt = some_ids(static_cast<size_t>(n), static_cast<uint64_t>(n));
    std::ranges::replace(prompt, kMessageEnd, kMessageEnd + 1);
    const Sent want = cold->ask(request(prompt, 1));
    const Sent first = warm->ask(request(prompt, 1));
    const Sent second = warm->ask(request(prompt, 1));
    ASSERT_EQ(first.client->answer(), want.client->answer()) << n;
    ASSERT_EQ(second.client->answer(), want.client->answer()) << n;
    ASSERT_EQ(hash(*warm, first), hash(*cold, want)) << n;
    ASSERT_EQ(hash(*warm, second), hash(*cold, want)) << n;
    EXPECT_EQ(first.client->usage().cached_tokens, 0) << n;
    EXPECT_EQ(first.client->usage().cache_note.empty(), n <= kGrid) << n;
    EXPECT_EQ(second.client->usage().cached_tokens, expected(n)) << n;
    EXPECT_EQ(second.client->usage().cache_note.empty(), expected(n) == (n - 1) / kGrid * kGrid);
  }
  warm->expect_quiet();
}

// A prompt without message ends, far from the last power of two, is not computed again to its end.
TEST_P(Prefix, ARetryGoesOnFromThePromptsEnd) {
  EngineOptions o = options();
  o.snapshot_interval = 0;
  const auto warm = bench(o);
  for (const int64_t n : {int64_t{90}, int64_t{192}, int64_t{193}, int64_t{200}, int64_t{250}}) {
    auto prompt = some_ids(static_cast<size_t>(n), static_cast<uint64_t>(n));
    std::ranges::replace(prompt, kMessageEnd, kMessageEnd + 1);
    const Sent first = warm->ask(request(prompt)), second = warm->ask(request(prompt));
    EXPECT_EQ(second.client->answer(), first.client->answer()) << n;
    EXPECT_EQ(hash(*warm, second), hash(*warm, first)) << n;
    const int64_t power = n < 128 ? 64 : 128, end = (n - 1) / kGrid * kGrid;
    EXPECT_EQ(second.client->usage().cached_tokens, end - power < 64 ? power : end) << n;
  }
}

// A chat: each turn sends all before it, its own answer included.
TEST_P(Prefix, ChatTurnsReuseAllMessagesBeforeTheLast) {
  const auto cold = cold_bench();
  const auto warm = bench(options());
  std::vector<int32_t> chat = some_ids(37, 1);
  std::ranges::replace(chat, kMessageEnd, kMessageEnd + 1);
  int64_t last_end = 0;
  for (uint64_t turn = 0; turn < 5; ++turn) {
    auto message = some_ids(11 + 5 * turn, 100 + turn);
    std::ranges::replace(message, kMessageEnd, kMessageEnd + 1);
    chat.insert(chat.end(), message.begin(), message.end());
    chat.push_back(kMessageEnd);
    const int64_t end = std::ssize(chat);
    chat.insert(chat.end(), {1, 2});  // the answer's header
    GenerationRequest r = request(chat, 20);
    r.stop_ids = {kMessageEnd};
    const Sent want = cold->ask(r);
    const Sent got = warm->ask(r);
    ASSERT_EQ(got.client->answer(), want.client->answer()) << turn;
    EXPECT_EQ(hash(*warm, got), hash(*cold, want)) << turn;
    if (turn > 0) {
      EXPECT_GE(got.client->usage().cached_tokens, last_end / kGrid * kGrid) << turn;
    }
    warm->expect_quiet();  // what the text left is in the cache by then
    last_end = end;
    chat.insert(chat.end(), got.client->ids().begin(), got.client->ids().end());
    chat.push_back(kMessageEnd);
  }
}

// An edited last message reuses everything before it.
TEST_P(Prefix, AnEditedTailReusesWhatIsBeforeIt) {
  const auto cold = cold_bench();
  const auto warm = bench(options());
  auto head = some_ids(75, 3);
  std::ranges::replace(head, kMessageEnd, kMessageEnd + 1);
  head.push_back(kMessageEnd);
  for (uint64_t edit = 0; edit < 6; ++edit) {
    std::vector<int32_t> prompt = head;
    const auto tail = some_ids(1 + 13 * edit, 50 + edit);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    const Sent want = cold->ask(request(prompt));
    const Sent got = warm->ask(request(prompt));
    EXPECT_EQ(got.client->answer(), want.client->answer()) << edit;
    if (edit > 0) {
      EXPECT_GE(got.client->usage().cached_tokens, std::ssize(head) / kGrid * kGrid) << edit;
    }
  }
}

// Hits leave what they hit as it was.
TEST_P(Prefix, ManyContinuationsOfOnePrefix) {
  const auto cold = cold_bench();
  const auto warm = bench(options());
  const auto head = some_ids(70, 4);
  warm->ask(request(head));
  std::string first;
  for (uint64_t i = 0; i < 12; ++i) {
    std::vector<int32_t> prompt = head;
    const auto tail = some_ids(std::vector<size_t>{1, 2, 50}[i % 3], 60 + i % 3);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    const Sent got = warm->ask(request(prompt));
    const Sent want = cold->ask(request(prompt));
    ASSERT_EQ(got.client->answer(), want.client->answer()) << i;
    ASSERT_EQ(hash(*warm, got), hash(*cold, want)) << i;
    EXPECT_GE(got.client->usage().cached_tokens, 64) << i;
  }
}

TEST_P(Prefix, SiblingsShareTheirBeginning) {
  for (const DraftMode draft : {DraftMode::kNone, DraftMode::kNgram}) {
    EngineOptions o = options();
    o.draft = draft;
    const auto cold = cold_bench();
    const auto warm = bench(o);
    for (const size_t shared : {5, 20, 40, 100}) {
      const auto head = some_ids(shared, shared);
      std::vector<Sent> sent;
      std::vector<GenerationRequest> requests;
      warm->ask(request(head));
      for (uint64_t i = 0; i < 4; ++i) {
        std::vector<int32_t> prompt = head;
        const auto tail = some_ids(40 + i, 1000 * shared + i);
        prompt.insert(prompt.end(), tail.begin(), tail.end());
        requests.push_back(request(prompt, 8));
        sent.push_back(warm->send(requests.back()));
      }
      for (size_t i = 0; i < sent.size(); ++i) sent[i].client->wait();
      for (size_t i = 0; i < sent.size(); ++i) {
        const Sent want = cold->ask(requests[i]);
        EXPECT_EQ(sent[i].client->answer(), want.client->answer()) << shared << " " << i;
        EXPECT_GE(sent[i].client->usage().cached_tokens,
                  static_cast<int64_t>(shared) / kCut * kCut);
      }
    }
  }
}

// The answer's own logprobs are those of its text as a prompt: decoding is prefill, warm or cold.
TEST_P(Prefix, PromptLogprobsOfAnAnswerAreItsLogprobs) {
  const auto b = bench(options());
  for (const size_t n : {1, 7, 8, 9, 40, 63, 64, 65}) {
    const auto prompt = some_ids(n, n);
    const Sent first = b->ask(request(prompt, 50));
    std::vector<int32_t> text = prompt;
    text.insert(text.end(), first.client->ids().begin(), first.client->ids().end());
    GenerationRequest score = request(text, 0);
    score.prompt_logprobs = 3;
    for (int i = 0; i < 2; ++i) {
      const Sent again = b->ask(score);
      const auto& prompt_logprobs = again.client->prompt();
      ASSERT_EQ(prompt_logprobs.size(), text.size() - 1);
      for (size_t j = 0; j < first.client->ids().size(); ++j) {
        const TokenLogprob& a = first.client->answer().logprobs[j];
        const TokenLogprob& s = prompt_logprobs[n - 1 + j];
        ASSERT_EQ(a.token, s.token);
        ASSERT_EQ(a.logprob, s.logprob);
        ASSERT_EQ(a.top, s.top);
      }
      EXPECT_EQ(again.client->usage().cached_tokens, 0);
      EXPECT_EQ(again.client->usage().cache_note, "prompt logprobs need every position computed");
    }
  }
}

// With a budget that holds few snapshots, answers stay what they are and the budget holds.
TEST_P(Prefix, ATightBudgetChangesNothingButSpeed) {
  const auto cold = cold_bench();
  EngineOptions o = options();
  o.max_positions = 200;
  o.max_sequences = 3;
  const ModelMemory m = cold->device().memory(*cold->model());
  o.memory_bytes = 0;
  for (const auto& [purpose, bytes] : bench(o)->engine().memory().purposes) {
    if (purpose != "snapshots" && purpose != "KV pages" && purpose != "cache index") {
      o.memory_bytes += bytes;
    }
  }
  o.memory_bytes += 16 * (m.kv_page + 256) + 4 * (m.checkpoint_slot + 4096);
  const auto warm = bench(o);
  int64_t total = 0;
  for (const auto& purpose : warm->engine().memory().purposes) total += purpose.second;
  EXPECT_LE(total, o.memory_bytes);
  std::vector<Sent> sent;
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 30; ++i) {
    auto prompt = some_ids(20 + 3 * i, i / 5);
    requests.push_back(request(prompt, 60));
    sent.push_back(warm->send(requests.back()));
  }
  for (const Sent& s : sent) s.client->wait();
  EXPECT_GT(warm->engine().stats().preemptions + warm->engine().stats().evicted, 0);
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(sent[i].client->answer(), cold->ask(requests[i]).client->answer()) << i;
  }
  warm->expect_quiet();
}

TEST_P(Prefix, WhatIsForgottenIsFree) {
  const auto b = bench(options());
  const Sent cold = b->ask(request(some_ids(150, 4), 40));
  const Sent warm = b->ask(request(some_ids(150, 4), 40));
  EXPECT_GT(warm.client->usage().cached_tokens, 0);
  b->expect_quiet();
  EXPECT_GT(b->engine().stats().snapshots, 0);
  EXPECT_FALSE(b->engine().drop_cache());
  const EngineStats s = b->engine().stats();
  EXPECT_EQ(s.snapshots, 0);
  EXPECT_EQ(s.slots_free, s.slots);
  EXPECT_EQ(s.pages_free, s.pages);
  const Sent again = b->ask(request(some_ids(150, 4), 40));
  EXPECT_EQ(again.client->usage().cached_tokens, 0);
  EXPECT_EQ(again.client->answer(), cold.client->answer());
}

INSTANTIATE_TEST_SUITE_P(Runtime, Prefix,
                         testing::Values(PrefixCase{"gdn_fp32", "qwen3_5_tied", {}},
                                         PrefixCase{"gdn_fp16", "qwen3_5_bf16", {}},
                                         PrefixCase{"gdn_int8", "qwen3_5_bf16", DType::kI8},
                                         PrefixCase{"mamba2_fp32", "nemotron_h_pattern", {}},
                                         PrefixCase{"mamba2_fp16", "nemotron_h_bf16", {}},
                                         PrefixCase{"gdn_moe", "kernels_qwen3_5_moe", DType::kBF16},
                                         PrefixCase{"mamba2_moe_int8", "kernels_nemotron_h_moe",
                                                    DType::kI8}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace replayssm
