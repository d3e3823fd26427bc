// Requests that are preempted, cancelled, forked, stopped or drafted for: the text is the same, and
// what they held comes back.
#include <thread>

#include "engine.h"

namespace replayssm {
namespace {

struct LifeCase {
  const char* name;
  const char* folder;
  std::optional<DType> checkpoint;
};

class Life : public testing::TestWithParam<LifeCase> {
 protected:
  void SetUp() override { SKIP_IF_REFUSED(fixture(GetParam().folder), model_options()); }
  static ModelOptions model_options() {
    ModelOptions model;
    model.interval = device_intervals().front();
    model.max_window = 4;
    model.checkpoint = GetParam().checkpoint;
    return model;
  }
  std::unique_ptr<Bench> bench(EngineOptions options = small_options()) const {
    return std::make_unique<Bench>(fixture(GetParam().folder), model_options(), std::move(options));
  }
  static GenerationRequest request(size_t prompt, int64_t n, uint64_t seed = 1) {
    GenerationRequest r = request_of(some_ids(prompt, seed), n);
    r.logprobs = 1;
    r.sampling.temperature = 0.7f;
    r.sampling.seed = seed;
    return r;
  }
  // Scripts of right and wrong drafts, in steps of 0..3; after two that stand, none.
  static std::vector<std::vector<int32_t>> script(const std::vector<int32_t>& text, uint64_t seed) {
    std::mt19937_64 rng(seed);
    std::vector<std::vector<int32_t>> steps;
    size_t known = 1;
    while (known < text.size()) {
      steps.emplace_back();
      const size_t size = rng() % 4, right = rng() % (size + 1);
      for (size_t i = 0; i < size && known + i < text.size(); ++i) {
        steps.back().push_back((text[known + i] + (i < right ? 0 : 1)) % kFixtureVocab);
      }
      known += std::min(right, steps.back().size()) + 1;
      if (right >= 2) {
        steps.emplace_back();
        ++known;
      }
    }
    return steps;
  }
};

// A draft model finds again what it has read, as the model does: a prompt that comes twice is
// drafted for from its first token on.
TEST_P(Life, TheDraftModelHasAPrefixCacheToo) {
  EngineOptions options = small_options();
  options.memory_bytes *= 2;
  options.draft = DraftMode::kModel;
  options.adaptive_drafts = false;
  options.draft_model = load_model(fixture(GetParam().folder), model_options());
  const auto b = bench(options);
  const GenerationRequest r = request(460, 33);
  const Sent cold = b->ask(r), warm = b->ask(r);
  EXPECT_EQ(warm.client->answer(), cold.client->answer());
  const RequestUsage &first = cold.client->usage(), &second = warm.client->usage();
  EXPECT_EQ(second.cached_tokens, 448);
  EXPECT_GT(second.accepted, first.accepted);
  ASSERT_FALSE(b->engine().drop_cache().has_value());
  EXPECT_EQ(b->ask(r).client->usage().accepted, first.accepted);
}

TEST_P(Life, PreemptedTextsAreTheSame) {
  const auto b = bench();
  for (const size_t at : {size_t{1}, size_t{8}, size_t{31}, size_t{127}}) {
    GenerationRequest r = request(77, 140, at);
    r.prompt_logprobs = at == 31 ? 2 : -1;
    const Sent want = b->ask(r);
    const std::string hash = b->final_state(want.id).hash;
    const auto client = std::make_shared<Client>();
    RequestId id = 0;
    size_t seen = 0;
    client->on_tokens = [&](std::span<const TokenEvent> events) {
      seen += events.size();
      if (seen == at) {
        EXPECT_FALSE(b->engine().preempt(id));
      }
      return events.size();
    };
    // Others run beside it.
    const Sent other = b->send(request(50, 150, 99));
    const auto refusal = b->engine().submit(r, client, &id);
    ASSERT_FALSE(refusal.has_value());
    client->wait();
    other.client->wait();
    EXPECT_EQ(client->answer(), want.client->answer()) << at;
    EXPECT_EQ(client->usage().preemptions, 1) << at;
    EXPECT_EQ(b->final_state(id).hash, hash) << at;
    ASSERT_EQ(client->prompt().size(), want.client->prompt().size());
    for (size_t i = 0; i < client->prompt().size(); ++i) {
      EXPECT_EQ(client->prompt()[i].logprob, want.client->prompt()[i].logprob);
    }
  }
  b->expect_quiet();
}

TEST_P(Life, CancelledAtAnyPointNothingIsLeft) {
  for (const bool cache : {true, false}) {
    EngineOptions o = small_options();
    o.prefix_cache = cache;
    o.draft = DraftMode::kNgram;
    o.max_sequences = 3;
    const auto b = bench(o);
    const EngineStats start = b->engine().stats();
    GenerationRequest r = request(200, 60);
    GenerationRequest longer = request(260, 20);
    const auto want = b->ask(r).client->answer();
    const auto want_longer = b->ask(longer).client->answer();
    std::mt19937_64 rng(5);
    for (size_t round = 0; round < 24; ++round) {
      std::vector<Sent> sent;
      const auto client = std::make_shared<Client>();
      RequestId id = 0;
      const size_t at = round % 3 == 0 ? 1 : round % 40;
      size_t seen = 0;
      if (round % 2 == 0) {  // in the middle of its text
        client->on_tokens = [&, at](std::span<const TokenEvent> events) {
          seen += events.size();
          if (seen >= at) b->engine().cancel(id);
          return events.size();
        };
      }
      // Some queue behind it.
      EXPECT_FALSE(b->engine().submit(r, client, &id).has_value());
      for (int i = 0; i < 4; ++i) sent.push_back(b->send(r));
      if (round % 2 == 1) {  // whenever
        std::this_thread::sleep_for(std::chrono::microseconds(rng() % 3000));
        b->engine().cancel(id);
        b->engine().cancel(sent[3].id);
      }
      client->wait();
      for (const Sent& s : sent) s.client->wait();
      if (round % 2 == 0) {
        EXPECT_EQ(client->answer().reason, FinishReason::kCancelled);
      }
      const auto& ids = client->ids();
      ASSERT_LE(ids.size(), want.ids.size());
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), want.ids.begin())) << round;
      for (int i = 0; i < 3; ++i) EXPECT_EQ(sent[static_cast<size_t>(i)].client->answer(), want);
    }
    EXPECT_EQ(b->ask(r).client->answer(), want);
    EXPECT_EQ(b->ask(longer).client->answer(), want_longer);
    b->expect_quiet();
    const EngineStats end = b->engine().stats();
    EXPECT_GT(end.cancelled, 0);
    if (!cache) {
      EXPECT_EQ(end.slots_free, start.slots_free);
      EXPECT_EQ(end.pages_free, start.pages_free);
    }
    b->engine().cancel(12345);  // nobody
  }
}

TEST_P(Life, ChoicesAreRequestsWithTheirSeeds) {
  const auto b = bench();
  for (const size_t prompt : {1, 7, 8, 9, 16, 64, 75}) {
    GenerationRequest r = request(prompt, 30, prompt);
    r.n = 5;
    const Sent together = b->ask(r);
    ASSERT_EQ(together.client->answers().size(), 5u);
    EXPECT_EQ(together.client->usage().new_tokens, 150);
    for (int32_t i = 0; i < 5; ++i) {
      GenerationRequest alone = r;
      alone.n = 1;
      alone.sampling.seed += static_cast<uint64_t>(i);
      EXPECT_EQ(b->ask(alone).client->answer(), together.client->answer(i)) << prompt << " " << i;
    }
  }
  b->expect_quiet();
}

TEST_P(Life, DraftsChangeNoText) {
  const auto b = bench();
  for (const size_t prompt : {1, 8, 13, 40}) {
    const GenerationRequest plain = request(prompt, 100, prompt);
    const Sent want = b->ask(plain);
    const std::string hash = b->final_state(want.id).hash;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      GenerationRequest r = plain;
      r.scripted_drafts = script(want.client->ids(), seed);
      r.draft_tokens = 3;
      const Sent got = b->ask(r);
      EXPECT_EQ(got.client->answer(), want.client->answer()) << prompt << " " << seed;
      EXPECT_GT(got.client->usage().accepted, 0);
      EXPECT_GT(got.client->usage().drafted, got.client->usage().accepted);
      EXPECT_EQ(b->final_state(got.id).hash, hash);
    }
    GenerationRequest ngram = plain;
    ngram.draft = DraftMode::kNgram;
    EXPECT_EQ(b->ask(ngram).client->answer(), want.client->answer());
  }
}

// A stop that the listener sees inside a step's tokens.
TEST_P(Life, AListenerEndsATextWhereItSays) {
  const auto b = bench();
  const GenerationRequest plain = request(20, 60);
  const auto want = b->ask(plain).client->answer().ids;
  for (const size_t keep : {1, 2, 3, 17, 40}) {
    std::vector<Sent> sent;
    for (const bool drafted : {false, true}) {
      GenerationRequest r = plain;
      if (drafted) {
        r.scripted_drafts.assign(60, {});
        for (size_t i = 0; i < 60; ++i) {
          for (size_t j = 1 + 4 * i; j < 4 + 4 * i && j < want.size(); ++j) {
            r.scripted_drafts[i].push_back(want[j]);
          }
        }
        r.draft_tokens = 3;
      }
      const auto client = std::make_shared<Client>();
      size_t seen = 0;
      client->on_tokens = [&](std::span<const TokenEvent> events) {
        const size_t kept = std::min(events.size(), keep - seen);
        // The token that completes a stop string is dropped itself.
        seen += kept;
        return kept;
      };
      sent.push_back(b->send(r, client));
      client->wait();
      EXPECT_EQ(client->answer().reason, FinishReason::kStopped);
      EXPECT_EQ(client->ids(), std::vector<int32_t>(want.begin(), want.begin() + keep)) << keep;
    }
    // The session is the kept text.
    b->expect_quiet();
    for (const Sent& s : sent) {
      ASSERT_FALSE(b->engine().save_session(s.id, "kept"));
      GenerationRequest next = request_of({want[keep]}, 5);
      next.session = "kept";
      const Sent got = b->ask(next);
      EXPECT_EQ(got.client->usage().prompt_tokens, 20 + static_cast<int64_t>(keep) + 1);
    }
  }
}

TEST_P(Life, StopIdsEndATextAndAreNoPartOfIt) {
  const auto b = bench();
  GenerationRequest r = request(30, 60);
  const auto want = b->ask(r).client->ids();
  r.stop_ids = {want[25]};
  const auto first = std::find(want.begin(), want.end(), want[25]);
  for (const DraftMode mode : {DraftMode::kNone, DraftMode::kNgram}) {
    r.draft = mode;
    const Sent got = b->ask(r);
    EXPECT_EQ(got.client->ids(), std::vector<int32_t>(want.begin(), first));
    EXPECT_EQ(got.client->answer().reason, FinishReason::kStopId);
  }
  r.max_new_tokens = 0;
  EXPECT_EQ(b->ask(r).client->answer().reason, FinishReason::kLength);
}

TEST_P(Life, DrainsAndRefusesAfterwards) {
  const auto b = bench();
  std::vector<Sent> sent;
  for (uint64_t i = 0; i < 12; ++i) sent.push_back(b->send(request(30, 20, i)));
  b->engine().drain(60);
  for (const Sent& s : sent) EXPECT_EQ(s.client->answer().ids.size(), 20u);
  RequestId id = 0;
  const auto refusal = b->engine().submit(request(3, 3), std::make_shared<Client>(), &id);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->kind, Refusal::Kind::kDraining);

  const auto late = bench();
  sent.clear();
  for (uint64_t i = 0; i < 12; ++i) sent.push_back(late->send(request(300, 200, i)));
  late->engine().drain(0);
  for (const Sent& s : sent) EXPECT_TRUE(s.client->answer().reason.has_value());
}

TEST_P(Life, MoreThanTheQueueHoldsIsBusy) {
  EngineOptions o = small_options();
  o.max_sequences = 1;
  o.max_queued = 2;
  const auto b = bench(o);
  std::vector<std::shared_ptr<Client>> clients;
  size_t busy = 0;
  for (int i = 0; i < 30; ++i) {
    const auto client = std::make_shared<Client>();
    RequestId id = 0;
    const auto refusal = b->engine().submit(request(100, 30), client, &id);
    if (refusal) {
      EXPECT_EQ(refusal->kind, Refusal::Kind::kBusy);
      ++busy;
    } else {
      clients.push_back(client);
    }
  }
  EXPECT_GT(busy, 0u);
  for (const auto& client : clients) client->wait();
  b->expect_quiet();
  b->ask(request(3, 3));
}

INSTANTIATE_TEST_SUITE_P(Runtime, Life,
                         testing::Values(LifeCase{"gdn_fp32", "qwen3_5_tied", {}},
                                         LifeCase{"gdn_int8", "qwen3_5_bf16", DType::kI8},
                                         LifeCase{"mamba2_fp16", "nemotron_h_bf16", {}},
                                         LifeCase{"gdn_moe_int8", "kernels_qwen3_5_moe",
                                                  DType::kI8},
                                         LifeCase{"mamba2_moe", "kernels_nemotron_h_moe", {}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace replayssm
