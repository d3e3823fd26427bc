// Drafts of demo-gdn's own head. The text and the state are those without drafts, and the head is
// where a cold run's is, whatever fed it: so that the same drafts are accepted.
#include "engine.h"
#include "model/tokenizer/tokenizer.h"

namespace replayssm {
namespace {

// Written for this test: no part of what the model was trained on.
const char* const kPrompts[] = {
    "# Reading a configuration file\n\nThe program reads its configuration from a file in",
    "If the server cannot open a socket on the given port, it",
    "## Upgrading\n\nBefore you install the new version of the package, make sure that",
    "The function returns a pointer to the first element of the list. If the list is empty,",
    "To build the documentation from source you need a recent version of",
    "A transaction is a sequence of statements that the database executes as",
    "The following table lists the options that the command accepts:\n\n",
    "Each thread has its own stack. When a thread ends, its stack",
    "def read_lines(path):\n    with open(path) as file:\n",
    "A branch is a name for a line of development. To merge two branches,",
    "The kernel keeps a list of all processes that wait for a",
    "<|im_start|>user\nHow do I list all files in a folder?<|im_end|>\n<|im_start|>assistant\n",
};

ModelOptions with_head() {
  ModelOptions options;
  options.max_window = 8;
  options.mtp = true;
  return options;
}

std::vector<std::vector<int32_t>> prompts() {
  const auto tokenizer = model::Tokenizer::load(demo("demo-gdn") + "/tokenizer.json");
  std::vector<std::vector<int32_t>> out;
  for (const char* text : kPrompts) out.push_back(tokenizer.encode_prompt(text));
  return out;
}

EngineOptions engine_options() {
  EngineOptions o;
  o.memory_bytes = int64_t{128} << 20;
  o.max_positions = 512;
  o.max_sequences = 8;
  o.chunk_tokens = 64;
  o.snapshot_interval = 32;
  o.draft = DraftMode::kMtp;
  o.draft_tokens = 4;
  o.adaptive_drafts = false;
  return o;
}

GenerationRequest greedy(std::vector<int32_t> prompt, int64_t n) {
  return request_of(std::move(prompt), n);
}

// Lets odd ids follow even ones, and even ones odd ones.
class Parity final : public TokenConstraint {
 public:
  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<Parity>(*this);
  }
  void allowed(std::span<uint8_t> allowed) override {
    for (size_t id = 0; id < allowed.size(); ++id) allowed[id] = id % 2 == n_ % 2;
  }
  bool accept(int32_t id) override {
    if (static_cast<size_t>(id) % 2 != n_ % 2) return false;
    ++n_;
    return true;
  }

 private:
  size_t n_ = 0;
};

class Mtp : public testing::Test {
 protected:
  void SetUp() override { SKIP_IF_REFUSED(demo("demo-gdn"), with_head()); }
  static std::unique_ptr<Bench> bench(const EngineOptions& options = engine_options()) {
    return std::make_unique<Bench>(demo("demo-gdn"), with_head(), options, 2);
  }
  // The same model without its head.
  static std::unique_ptr<Bench> plain() {
    EngineOptions o = engine_options();
    o.draft = DraftMode::kNone;
    ModelOptions options = with_head();
    options.mtp = false;
    return std::make_unique<Bench>(demo("demo-gdn"), options, o, 2);
  }
  static std::string hash(Bench& b, const Sent& sent) { return b.final_state(sent.id).hash; }
  // A longer prompt, whose text the model likes.
  static std::vector<int32_t> long_prompt(size_t n) {
    std::vector<int32_t> out;
    for (const auto& prompt : prompts()) out.insert(out.end(), prompt.begin(), prompt.end());
    out.resize(n);
    return out;
  }
};

// A step proposes up to K, another K each; after it the head proposes what it would after reading
// the text anew.
TEST_F(Mtp, AnyKEachStepDraftsAsAColdRun) {
  ThreadPool pool(2);
  const ops::Context context(pool);
  const auto device = open_device(context);
  const auto model = Model::load(demo("demo-gdn"), with_head());
  Runner runner(model, *device, {1, 512, 512, 64}), cold(model, *device, {1, 512, 512, 64});
  ops::Sampler sampler(context, model->spec().vocab);
  for (const float temperature : {0.0f, 0.8f}) {
    const ops::SamplerParams sampling{.temperature = temperature, .seed = 3};
    auto text = prompts()[0];
    const OpenSequence sequence(runner);
    const auto feed = [](Runner& to, int32_t id, std::span<const int32_t> ids) {
      Window window{id, ids};
      window.prefill = true;
      to.run({&window, 1});
    };
    feed(runner, sequence.id(), std::span(text).first(text.size() - 1));
    int64_t accepted = 0;
    for (int32_t step = 0; step < 40; ++step) {
      const int32_t k = step * 3 % 8;
      const auto drafts = runner.draft(sequence.id(), text.back(), k, sampler, sampling);
      ASSERT_EQ(std::ssize(drafts), k);
      const OpenSequence other(cold);
      feed(cold, other.id(), std::span(text).first(text.size() - 1));
      ASSERT_EQ(cold.draft(other.id(), text.back(), k, sampler, sampling), drafts) << step;
      std::vector<int32_t> fed = {text.back()};
      fed.insert(fed.end(), drafts.begin(), drafts.end());
      Window window{sequence.id(), fed};
      window.n_logits = k + 1;
      const float* logits = runner.run({&window, 1});
      size_t stand = 0;
      for (bool agrees = true; agrees; ++stand) {
        const auto drawn = sampler.sample(
            logits + static_cast<int64_t>(stand) * model->spec().vocab, sampling, std::ssize(text));
        text.push_back(drawn.token);
        agrees = stand < drafts.size() && drafts[stand] == drawn.token;
        accepted += agrees ? 1 : 0;
      }
      runner.advance(sequence.id(), static_cast<int64_t>(stand));
    }
    EXPECT_GT(accepted, 20);
  }
}

// All at once: another K, sampling, penalties or grammar each.
TEST_F(Mtp, TextAndStateAreThoseWithoutDrafts) {
  const auto b = bench(), bare = plain();
  std::vector<GenerationRequest> requests;
  for (int32_t i = 0; i < 12; ++i) {
    GenerationRequest r = greedy(prompts()[static_cast<size_t>(i)], 60);
    r.draft_tokens = i % 8;
    r.sampling.seed = static_cast<uint64_t>(i);
    r.sampling.temperature = i % 3 == 1 ? 0.8f : 0.0f;
    if (i % 4 == 2) r.penalties.repetition = 1.2f;
    if (i % 4 == 3) r.constraint = std::make_shared<Parity>();
    if (i % 5 == 4) r.logprobs = 2;
    requests.push_back(r);
  }
  std::vector<Sent> sent;
  for (const auto& r : requests) sent.push_back(b->send(r));
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i].client->wait();
    GenerationRequest without = requests[i];
    without.draft_tokens = -1;
    const Sent want = bare->ask(without);
    EXPECT_EQ(sent[i].client->answer(), want.client->answer()) << i;
    EXPECT_EQ(hash(*b, sent[i]), hash(*bare, want)) << i;
    EXPECT_EQ(sent[i].client->usage().drafted > 0, requests[i].draft_tokens > 0) << i;
  }
  b->expect_quiet();
}

TEST_F(Mtp, HitsDraftAsAColdRun) {
  const auto b = bench();
  EngineOptions o = engine_options();
  o.prefix_cache = false;
  const auto cold = bench(o);
  for (const size_t n : {1, 15, 16, 17, 33, 64, 67}) {
    const GenerationRequest r = greedy(long_prompt(n), 40);
    const Sent want = cold->ask(r), first = b->ask(r), again = b->ask(r);
    for (const Sent* sent : {&first, &again}) {
      EXPECT_EQ(sent->client->answer(), want.client->answer()) << n;
      EXPECT_EQ(hash(*b, *sent), hash(*cold, want)) << n;
      EXPECT_EQ(sent->client->usage().drafted, want.client->usage().drafted) << n;
      EXPECT_EQ(sent->client->usage().accepted, want.client->usage().accepted) << n;
    }
    EXPECT_EQ(again.client->usage().cached_tokens > 0, n > 16) << n;
  }
}

TEST_F(Mtp, ForksDraftAsOneAlone) {
  const auto b = bench();
  GenerationRequest r = greedy(long_prompt(37), 50);
  const Sent one = b->ask(r);
  r.n = 3;
  const Sent three = b->ask(r);
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(three.client->answer(i), one.client->answer());
  EXPECT_EQ(three.client->usage().accepted, 3 * one.client->usage().accepted);
  EXPECT_EQ(three.client->usage().drafted, 3 * one.client->usage().drafted);
}

TEST_F(Mtp, PreemptedTextsAreTheSame) {
  const auto b = bench();
  const GenerationRequest r = greedy(long_prompt(50), 80);
  const Sent want = b->ask(r);
  const std::string state = hash(*b, want);
  for (const size_t at : {5, 21, 40}) {
    const auto client = std::make_shared<Client>();
    RequestId id = 0;
    size_t seen = 0;
    bool asked = false;
    client->on_tokens = [&](std::span<const TokenEvent> events) {
      seen += events.size();
      if (seen >= at && !asked) {
        asked = true;
        EXPECT_FALSE(b->engine().preempt(id));
      }
      return events.size();
    };
    ASSERT_FALSE(b->engine().submit(r, client, &id).has_value());
    client->wait();
    EXPECT_EQ(client->answer(), want.client->answer()) << at;
    EXPECT_EQ(client->usage().preemptions, 1) << at;
    EXPECT_EQ(hash(*b, {client, id}), state) << at;
    // One step, the first after the preemption, drafts nothing.
    EXPECT_GE(client->usage().accepted + 2 * 5, want.client->usage().accepted) << at;
  }
}

TEST_F(Mtp, GoesOnFromDiskAsBefore) {
  TempFolder folder;
  EngineOptions o = engine_options();
  o.cache_folder = folder.path();
  const auto b = bench(o);
  GenerationRequest r = greedy(long_prompt(90), 40);
  const Sent want = b->ask(r);
  b->restart();
  const Sent again = b->ask(r);
  EXPECT_EQ(again.client->answer(), want.client->answer());
  EXPECT_GE(again.client->usage().cached_tokens, 64);
  EXPECT_EQ(again.client->usage().accepted, want.client->usage().accepted);
  EXPECT_EQ(again.client->usage().drafted, want.client->usage().drafted);

  ASSERT_FALSE(b->engine().save_session(again.id, "chat").has_value());
  r.prompt = prompts()[3];
  r.session = "chat";
  const Sent before = b->ask(r);
  b->restart();
  ASSERT_FALSE(b->engine().restore_session("chat").has_value());
  const Sent after = b->ask(r);
  EXPECT_EQ(after.client->answer(), before.client->answer());
  EXPECT_GE(after.client->usage().cached_tokens, 112);
  EXPECT_EQ(after.client->usage().accepted, before.client->usage().accepted);
}

// The share of steps in which the first 1, 2, ... drafts are all accepted; greedy, after prompts
// that are no part of the training text.
TEST_F(Mtp, AcceptanceByDepth) {
  ThreadPool pool(2);
  const ops::Context context(pool);
  const auto device = open_device(context);
  const auto model = Model::load(demo("demo-gdn"), with_head());
  Runner runner(model, *device, {1, 512, 256, 64});
  ops::Sampler sampler(context, model->spec().vocab);
  GenerateParams params;
  params.max_new_tokens = 224;
  params.draft_tokens = 5;
  params.mtp = true;
  std::vector<double> drafted(5), accepted(5);
  for (const auto& prompt : prompts()) {
    const GenerateStats stats = generate(runner, sampler, nullptr, prompt, params, [](int32_t) {});
    for (size_t i = 0; i < 5; ++i) {
      drafted[i] += static_cast<double>(stats.drafted_by_depth[i]);
      accepted[i] += static_cast<double>(stats.accepted_by_depth[i]);
    }
  }
  const double least[] = {.85, .65, .50, .38, .29};
  for (size_t i = 0; i < 5; ++i) {
    RecordProperty(concat("depth_", i + 1), concat(accepted[i] / drafted[i]));
    EXPECT_GE(accepted[i] / drafted[i], least[i]) << "depth " << i + 1;
  }
}

// At temperature 1 the head draws with the model's own noise. Independent draws would agree in less
// than two of five places, and the first choice of the head is the model's draw as rarely.
TEST_F(Mtp, AcceptanceOfDraws) {
  ThreadPool pool(2);
  const ops::Context context(pool);
  const auto device = open_device(context);
  const auto model = Model::load(demo("demo-gdn"), with_head());
  Runner runner(model, *device, {1, 512, 256, 64});
  ops::Sampler sampler(context, model->spec().vocab);
  GenerateParams params;
  params.max_new_tokens = 200;
  params.draft_tokens = 1;
  params.mtp = true;
  params.sampling.temperature = 1;
  double drafted = 0, accepted = 0;
  for (const auto& prompt : prompts()) {
    ++params.sampling.seed;
    const GenerateStats stats = generate(runner, sampler, nullptr, prompt, params, [](int32_t) {});
    drafted += static_cast<double>(stats.drafted);
    accepted += static_cast<double>(stats.accepted);
  }
  RecordProperty("depth_1", concat(accepted / drafted));
  EXPECT_GE(accepted / drafted, 0.55);
}

TEST_F(Mtp, IsRefusedWhereThereIsNone) {
  const auto bare = plain();
  GenerationRequest r = greedy({1, 2, 3}, 4);
  r.draft = DraftMode::kMtp;
  RequestId id = 0;
  const auto refusal = bare->engine().submit(r, std::make_shared<Client>(), &id);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->field, "draft");
  EngineOptions o = engine_options();
  expect_refusal({"draft", "head"}, [&] { Bench(fixture("qwen3_5_tied"), {}, o); });
}

}  // namespace
}  // namespace replayssm
