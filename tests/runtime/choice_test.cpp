// Penalties, biases, grammars and logprobs, with and without drafts; refusals of requests and
// options.
#include <cmath>
#include <set>

#include "engine.h"
#include "runtime/logits.h"

namespace replayssm {
namespace {

// Ids whose remainder by 3 counts on from the last; ends after `length` tokens.
class CountingConstraint final : public TokenConstraint {
 public:
  explicit CountingConstraint(int64_t length) : length_(length) {}
  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<CountingConstraint>(*this);
  }
  void allowed(std::span<uint8_t> allowed) override {
    for (size_t id = 0; id < allowed.size(); ++id) allowed[id] = fits(static_cast<int32_t>(id));
  }
  bool accept(int32_t id) override {
    if (!fits(id)) return false;
    ++n_;
    return true;
  }

 private:
  bool fits(int32_t id) const { return n_ < length_ && id % 3 == n_ % 3; }
  int64_t length_;
  int64_t n_ = 0;
};

// Cannot go on after `length` tokens.
class FailingConstraint final : public TokenConstraint {
 public:
  explicit FailingConstraint(int64_t length) : length_(length) {}
  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<FailingConstraint>(*this);
  }
  void allowed(std::span<uint8_t> allowed) override {
    if (length_ == 0) fail("too much work");
    std::ranges::fill(allowed, uint8_t{1});
  }
  bool accept(int32_t) override {
    if (length_-- == 0) fail("too much work");
    return true;
  }

 private:
  int64_t length_;
};

class Choices : public testing::Test {
 protected:
  void SetUp() override {
    ModelOptions model;
    model.interval = 8;
    model.max_window = 4;
    EngineOptions options = small_options();
    options.max_queued = 64;
    bench_ = std::make_unique<Bench>(fixture("qwen3_5_bf16"), model, options);
  }
  static GenerationRequest request(int64_t n) {
    GenerationRequest r = request_of(some_ids(21, 4), n);
    r.sampling.temperature = 0.9f;
    r.sampling.seed = 11;
    return r;
  }
  // The same with wrong and right drafts; returns the one answer.
  Client::Answer answer(const GenerationRequest& r) {
    const Client::Answer want = bench_->ask(r).client->answer();
    GenerationRequest drafted = r;
    drafted.draft = DraftMode::kNgram;
    EXPECT_EQ(bench_->ask(drafted).client->answer(), want);
    std::mt19937_64 rng(3);
    size_t known = 1;
    while (known < want.ids.size()) {
      drafted.scripted_drafts.emplace_back();
      const size_t right = rng() % 4;
      for (size_t i = 0; i < 3 && known + i < want.ids.size(); ++i) {
        drafted.scripted_drafts.back().push_back((want.ids[known + i] + (i < right ? 0 : 3)) %
                                                 kFixtureVocab);
      }
      known += std::min(right, drafted.scripted_drafts.back().size()) + 1;
    }
    const Sent got = bench_->ask(drafted);
    EXPECT_EQ(got.client->answer(), want);
    if (want.ids.size() > 20) {
      EXPECT_GT(got.client->usage().accepted, 0);
    }
    return want;
  }

  std::unique_ptr<Bench> bench_;
};

TEST_F(Choices, BiasForcesAndForbids) {
  GenerationRequest r = request(40);
  r.penalties.bias = {{17, 100.0f}};
  EXPECT_EQ(answer(r).ids, std::vector<int32_t>(40, 17));
  r.penalties.bias.clear();
  r.sampling.temperature = 0;
  const int32_t first = answer(r).ids[0];
  r.penalties.bias = {{first, -100.0f}};
  const auto ids = answer(r).ids;
  EXPECT_EQ(std::ranges::find(ids, first), ids.end());
}

TEST_F(Choices, PresenceKeepsATextFromRepeating) {
  GenerationRequest r = request(60);
  r.penalties.presence = 90;
  const auto ids = answer(r).ids;
  EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), ids.size());
}

// Against the definition, token by token, from the raw logits.
TEST_F(Choices, PenaltiesAreAsDefined) {
  GenerationRequest r = request(50);
  r.sampling.temperature = 0;
  r.penalties = {1.4f, 0.3f, 0.2f, {{5, 1.5f}, {60, -2.0f}}};
  const auto got = answer(r).ids;
  bench_->expect_quiet();
  Runner runner(bench_->model(), bench_->context(), {1, 512, 256, 256});
  std::vector<int32_t> text = r.prompt;
  for (const int32_t id : got) {
    const auto logits = logits_of(runner, text, {});
    std::vector<float> row(logits.end() - kFixtureVocab, logits.end());
    for (int32_t i = 0; i < kFixtureVocab; ++i) {
      float& logit = row[static_cast<size_t>(i)];
      const auto answer_begin = text.begin() + std::ssize(r.prompt);
      const auto count = std::count(answer_begin, text.end(), i);
      if (std::ranges::find(text, i) != text.end()) logit = logit > 0 ? logit / 1.4f : logit * 1.4f;
      if (count > 0) logit -= 0.3f + 0.2f * static_cast<float>(count);
      if (i == 5) logit += 1.5f;
      if (i == 60) logit -= 2.0f;
    }
    ASSERT_EQ(id, std::ranges::max_element(row) - row.begin()) << text.size();
    text.push_back(id);
  }
}

TEST_F(Choices, AGrammarHoldsAndEndsTheText) {
  GenerationRequest r = request(100);
  r.constraint = std::make_shared<CountingConstraint>(31);
  r.logprobs = 0;
  const auto got = answer(r);
  ASSERT_EQ(got.ids.size(), 31u);
  EXPECT_EQ(got.reason, FinishReason::kConstraintDone);
  for (size_t i = 0; i < got.ids.size(); ++i) EXPECT_EQ(got.ids[i] % 3, static_cast<int>(i) % 3);
  r.n = 3;
  const Sent sent = bench_->ask(r);
  EXPECT_EQ(sent.client->answer(0), got);
  for (int32_t i = 1; i < 3; ++i) EXPECT_EQ(sent.client->answer(i).ids.size(), 31u);
  GenerationRequest short_one = request(100);
  short_one.constraint = std::make_shared<CountingConstraint>(0);
  EXPECT_EQ(bench_->ask(short_one).client->answer().reason, FinishReason::kConstraintDone);
}

TEST_F(Choices, AGrammarThatFailsEndsItsOwnAnswer) {
  const auto alone = answer(request(100));
  GenerationRequest r = request(100);
  r.constraint = std::make_shared<FailingConstraint>(7);
  for (const DraftMode draft : {DraftMode::kNone, DraftMode::kNgram}) {
    r.draft = draft;
    const Sent failing = bench_->send(r);
    const Sent other = bench_->ask(request(100));
    failing.client->wait();
    EXPECT_EQ(failing.client->error(), "too much work");
    EXPECT_EQ(failing.client->answer().reason, FinishReason::kError);
    EXPECT_EQ(failing.client->answer().ids.size(), 7u);
    EXPECT_EQ(other.client->answer(), alone);
  }
}

TEST_F(Choices, LogprobsAreOfTheRawLogits) {
  GenerationRequest r = request(12);
  r.logprobs = 4;
  r.penalties.bias = {{17, 100.0f}};
  const auto got = bench_->ask(r).client->answer();
  bench_->expect_quiet();
  Runner runner(bench_->model(), bench_->context(), {1, 512, 256, 256});
  std::vector<int32_t> text = r.prompt;
  ASSERT_EQ(got.logprobs.size(), 12u);
  for (const TokenLogprob& logprob : got.logprobs) {
    const auto logits = logits_of(runner, text, {});
    const float* row = logits.data() + (text.size() - 1) * kFixtureVocab;
    double total = 0;
    for (int32_t i = 0; i < kFixtureVocab; ++i) total += std::exp(static_cast<double>(row[i]));
    const auto want = [&](int32_t id) { return static_cast<double>(row[id]) - std::log(total); };
    EXPECT_EQ(logprob.token, 17);
    EXPECT_NEAR(logprob.logprob, want(17), 1e-5);
    EXPECT_EQ(logprob.logprob, ops::log_prob(bench_->context(), row, kFixtureVocab, 17));
    ASSERT_EQ(logprob.top.size(), 4u);
    EXPECT_EQ(logprob.top[0].first, std::max_element(row, row + kFixtureVocab) - row);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(logprob.top[i].second, want(logprob.top[i].first), 1e-5);
      if (i > 0) {
        EXPECT_GE(logprob.top[i - 1].second, logprob.top[i].second);
      }
    }
    text.push_back(17);
  }
}

TEST_F(Choices, RefusalsNameTheField) {
  const auto refused = [&](const char* field, const char* part, const auto& change) {
    GenerationRequest r = request(5);
    change(r);
    RequestId id = 0;
    const auto refusal = bench_->engine().submit(r, std::make_shared<Client>(), &id);
    ASSERT_TRUE(refusal.has_value()) << field;
    EXPECT_EQ(refusal->kind, Refusal::Kind::kInvalid);
    EXPECT_EQ(refusal->field, field);
    EXPECT_NE(refusal->message.find(part), std::string::npos) << refusal->message;
  };
  using R = GenerationRequest;
  const float nan = std::nanf("");
  refused("prompt", "empty", [](R& r) { r.prompt.clear(); });
  refused("prompt", "120", [](R& r) { r.prompt[3] = 120; });
  refused("prompt", "-1", [](R& r) { r.prompt[0] = -1; });
  refused("prompt", "512 tokens; the context of 512", [](R& r) { r.prompt.assign(512, 1); });
  refused("max_new_tokens", "negative", [](R& r) { r.max_new_tokens = -1; });
  refused("n", "9", [](R& r) { r.n = 9; });
  refused("n", "0", [](R& r) { r.n = 0; });
  refused("temperature", "", [&](R& r) { r.sampling.temperature = nan; });
  refused("temperature", "", [](R& r) { r.sampling.temperature = -1; });
  refused("top_p", "", [](R& r) { r.sampling.top_p = 0; });
  refused("min_p", "", [](R& r) { r.sampling.min_p = 2; });
  refused("top_k", "", [](R& r) { r.sampling.top_k = -1; });
  refused("repetition", "", [](R& r) { r.penalties.repetition = 0; });
  refused("presence", "", [&](R& r) { r.penalties.presence = nan; });
  refused("frequency", "", [](R& r) { r.penalties.frequency = 1e9f; });
  refused("bias", "120", [](R& r) { r.penalties.bias = {{120, 1.0f}}; });
  refused("bias", "finite", [&](R& r) { r.penalties.bias = {{1, nan}}; });
  refused("stop_ids", "500", [](R& r) { r.stop_ids = {500}; });
  refused("logprobs", "65", [](R& r) { r.logprobs = 65; });
  refused("prompt_logprobs", "-2", [](R& r) { r.prompt_logprobs = -2; });
  refused("draft_tokens", "4", [](R& r) { r.draft_tokens = 4; });
  refused("draft", "draft model", [](R& r) { r.draft = DraftMode::kModel; });
  refused("scripted_drafts", "700", [](R& r) { r.scripted_drafts = {{700}}; });
  bench_->expect_quiet();
}

TEST_F(Choices, OptionsThatCannotBeAreRefused) {
  const auto refused = [&](std::initializer_list<std::string> parts, const auto& change) {
    EngineOptions o = small_options();
    change(o);
    expect_refusal(parts, [&] { make_engine(bench_->model(), bench_->context(), o); });
  };
  using O = EngineOptions;
  refused({"max_positions", "1"}, [](O& o) { o.max_positions = 1; });
  refused({"max_sequences", "0"}, [](O& o) { o.max_sequences = 0; });
  refused({"chunk_tokens", "100"}, [](O& o) { o.chunk_tokens = 100; });
  refused({"draft_tokens", "4", "window of 4"}, [](O& o) {
    o.draft = DraftMode::kNgram;
    o.draft_tokens = 4;
  });
  refused({"draft_model"}, [](O& o) { o.draft = DraftMode::kModel; });
  refused({"memory budget of 1 MiB", "weights"}, [](O& o) { o.memory_bytes = 1 << 16; });
  refused({"trace"}, [](O& o) { o.trace_file = "/nonexistent/trace.json"; });
  refused({"cache folder"}, [](O& o) { o.cache_folder = "/proc/nonexistent"; });
}

// Chosen by itself, the budget holds every sequence at its longest, whatever the cache holds.
TEST_F(Choices, TheDefaultBudgetNeverPreempts) {
  bench_->options().memory_bytes = 0;
  bench_->restart();
  std::vector<Sent> sent;
  for (uint64_t i = 0; i < 16; ++i) sent.push_back(bench_->send(request_of(some_ids(64, i), 448)));
  for (const Sent& s : sent) s.client->wait();
  EXPECT_EQ(bench_->engine().stats().preemptions, 0);
}

// Fewer sequences where all do not fit, and the pages of a whole text in any case.
TEST_F(Choices, ATightBudgetFitsFewerSequences) {
  EngineOptions o = small_options();
  o.memory_bytes = 0;
  const auto whole = make_engine(bench_->model(), bench_->context(), o)->memory();
  o.memory_bytes = whole.budget * 3 / 5;
  const auto engine = make_engine(bench_->model(), bench_->context(), o);
  int64_t total = 0;
  for (const auto& purpose : engine->memory().purposes) total += purpose.second;
  EXPECT_LE(total, o.memory_bytes);
  EXPECT_GE(engine->stats().pages, 512 / 16);
  EXPECT_GE(engine->stats().rings, 1);
  EXPECT_LE(engine->stats().rings, 8);
}

}  // namespace
}  // namespace replayssm
