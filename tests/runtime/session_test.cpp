// Sessions and snapshots on disk: what comes back is what went, or is refused and computed again.
#include <filesystem>

#include "engine.h"

namespace replayssm {
namespace {

namespace fs = std::filesystem;

struct SessionCase {
  const char* name;
  const char* folder;
};

class Session : public testing::TestWithParam<SessionCase> {
 protected:
  void SetUp() override {
    SKIP_IF_REFUSED(fixture(GetParam().folder), model_options());
    start();
  }
  static ModelOptions model_options() {
    ModelOptions model;
    model.interval = device_intervals().front();
    model.max_window = 4;
    return model;
  }
  void start() {
    bench_.reset();
    EngineOptions options = small_options();
    options.cache_folder = folder_.path();
    options.draft = draft_;
    bench_ = std::make_unique<Bench>(fixture(GetParam().folder), model_options(), options);
  }
  std::vector<fs::path> files(const std::string& ending) const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.path().extension() == ending) out.push_back(entry.path());
    }
    std::ranges::sort(out);
    return out;
  }
  static void flip(const fs::path& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 0x10));
  }
  static GenerationRequest request(std::vector<int32_t> prompt, int64_t n) {
    GenerationRequest r = request_of(std::move(prompt), n);
    r.logprobs = 2;
    return r;
  }
  // What the session's text and `more` give in one go.
  Client::Answer in_one_go(const std::vector<int32_t>& text, const std::vector<int32_t>& more) {
    std::vector<int32_t> prompt = text;
    prompt.insert(prompt.end(), more.begin(), more.end());
    EngineOptions options = small_options();
    options.prefix_cache = false;
    Bench cold(fixture(GetParam().folder), model_options(), options);
    return cold.ask(request(prompt, 10)).client->answer();
  }
  Engine& engine() { return bench_->engine(); }

  TempFolder folder_;
  DraftMode draft_ = DraftMode::kNone;
  std::unique_ptr<Bench> bench_;
};

TEST_P(Session, GoesOnAfterARestart) {
  for (const DraftMode draft : {DraftMode::kNone, DraftMode::kNgram}) {
    draft_ = draft;
    start();
    for (const int64_t n : {1, 5, 23}) {  // the ring half full, full, empty
      const auto prompt = some_ids(50, 1);
      const Sent sent = bench_->ask(request(prompt, n));
      bench_->expect_quiet();
      ASSERT_FALSE(engine().save_session(sent.id, "chat"));
      std::vector<int32_t> text = prompt;
      text.insert(text.end(), sent.client->ids().begin(), sent.client->ids().end());
      const auto more = some_ids(9, 2);
      const auto want = in_one_go(text, more);

      start();
      GenerationRequest next = request(more, 10);
      next.session = "chat";
      RequestId id = 0;
      const auto refusal = engine().submit(next, std::make_shared<Client>(), &id);
      ASSERT_TRUE(refusal.has_value());
      EXPECT_EQ(refusal->kind, Refusal::Kind::kUnknownSession);
      ASSERT_FALSE(engine().restore_session("chat"));
      const Sent again = bench_->ask(next);
      EXPECT_EQ(again.client->answer(), want) << n;
      EXPECT_EQ(again.client->usage().prompt_tokens, std::ssize(text) + 9);
      EXPECT_GE(again.client->usage().cached_tokens, 32) << n;
    }
  }
}

TEST_P(Session, ForksAtAnyTokenGoOnAsThoseTokens) {
  const auto prompt = some_ids(70, 3);
  const Sent sent = bench_->ask(request(prompt, 12));
  bench_->expect_quiet();
  ASSERT_FALSE(engine().save_session(sent.id, "trunk"));
  std::vector<int32_t> text = prompt;
  text.insert(text.end(), sent.client->ids().begin(), sent.client->ids().end());
  const auto more = some_ids(4, 5);
  for (const int64_t length : {1, 8, 15, 16, 17, 64, 81}) {
    ASSERT_FALSE(engine().fork_session("trunk", "branch", length));
    GenerationRequest next = request(more, 10);
    next.session = "branch";
    const Sent got = bench_->ask(next);
    EXPECT_EQ(got.client->answer(), in_one_go({text.begin(), text.begin() + length}, more))
        << length;
  }
  using Kind = Refusal::Kind;
  EXPECT_EQ(engine().fork_session("trunk", "branch", 83)->kind, Kind::kInvalid);
  EXPECT_EQ(engine().fork_session("trunk", "branch", 0)->kind, Kind::kInvalid);
  EXPECT_EQ(engine().fork_session("nobody", "branch", 1)->kind, Kind::kUnknownSession);
  EXPECT_FALSE(engine().drop_session("branch"));
  EXPECT_EQ(engine().drop_session("branch")->kind, Kind::kUnknownSession);
  EXPECT_EQ(engine().restore_session("branch")->kind, Kind::kUnknownSession);
}

// Any flipped byte and any cut.
TEST_P(Session, AFileThatChangedIsRefused) {
  const Sent sent = bench_->ask(request(some_ids(40, 7), 3));
  bench_->expect_quiet();
  ASSERT_FALSE(engine().save_session(sent.id, "chat"));
  const auto file = files(".session").at(0);
  const std::string good = read_text(file.string());
  int64_t refused = engine().stats().refused_corrupt;
  const auto expect_refused = [&](const std::string& bytes) {
    write_text(file.string(), bytes);
    const auto error = engine().restore_session("chat");
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->kind, Refusal::Kind::kConflict);
    EXPECT_NE(error->message.find(file.string()), std::string::npos) << error->message;
    EXPECT_EQ(engine().stats().refused_corrupt, ++refused);
  };
  std::vector<size_t> places;
  for (size_t at = 0; at < 64; ++at) places.push_back(at);
  for (size_t at = 64; at < good.size(); at += good.size() / 40) places.push_back(at);
  for (size_t i = 1; i <= 8; ++i) places.push_back(good.size() - i);
  for (const size_t at : places) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    expect_refused(bad);
  }
  for (const size_t size : {size_t{0}, size_t{7}, size_t{48}, good.size() / 2, good.size() - 1}) {
    expect_refused(good.substr(0, size));
  }
  expect_refused(good + "x");
  write_text(file.string(), good);
  EXPECT_FALSE(engine().restore_session("chat"));
}

// Snapshots outlive the process; a changed one is computed again.
TEST_P(Session, SnapshotsComeBackFromDisk) {
  const auto prompt = some_ids(100, 8);
  const Sent cold = bench_->ask(request(prompt, 5));
  bench_->expect_quiet();
  start();
  ASSERT_FALSE(files(".snapshot").empty());
  const Sent warm = bench_->ask(request(prompt, 5));
  EXPECT_EQ(warm.client->answer(), cold.client->answer());
  EXPECT_EQ(warm.client->usage().cached_tokens, 96);
  start();
  for (const auto& file : files(".snapshot"))
    flip(file, static_cast<int64_t>(fs::file_size(file)) / 2);
  start();
  const Sent again = bench_->ask(request(prompt, 5));
  EXPECT_EQ(again.client->answer(), cold.client->answer());
  EXPECT_EQ(again.client->usage().cached_tokens, 0);
  EXPECT_GT(engine().stats().refused_corrupt, 0);
}

// What the cache evicts comes back from host memory, and what that evicts, from disk.
TEST_P(Session, HostMemoryTakesWhatTheCacheGivesUp) {
  EngineOptions options = small_options();
  const auto prompts = [](uint64_t i) { return some_ids(100, 40 + i); };
  // The cached tokens of the first prompt after seven others, the cache emptied after each.
  const auto cached = [&](int64_t host_bytes, const std::string& folder) {
    options.host_bytes = host_bytes;
    options.cache_folder = folder;
    Bench b(fixture(GetParam().folder), model_options(), options);
    std::vector<Client::Answer> answers;
    for (uint64_t i = 0; i < 8; ++i) {
      answers.push_back(b.ask(request(prompts(i), 5)).client->answer());
      b.expect_quiet();
      EXPECT_FALSE(b.engine().drop_cache().has_value());
      EXPECT_EQ(b.engine().stats().snapshots, 0);
    }
    EXPECT_EQ(b.engine().stats().host_snapshots > 0, host_bytes > 100000);
    EXPECT_LE(b.engine().stats().host_snapshot_bytes, host_bytes);
    const Sent again = b.ask(request(prompts(0), 5));
    EXPECT_EQ(again.client->answer(), answers[0]);
    b.expect_quiet();
    return again.client->usage().cached_tokens;
  };
  bench_.reset();
  EXPECT_EQ(cached(0, ""), 0);
  EXPECT_EQ(cached(1000, ""), 0);  // holds none
  EXPECT_EQ(cached(300000, ""), 0);
  EXPECT_EQ(cached(int64_t{64} << 20, ""), 96);
  const TempFolder folder;
  EXPECT_EQ(cached(300000, folder.path()), 96);
  // All went to disk at the end.
  options.host_bytes = 0;
  Bench last(fixture(GetParam().folder), model_options(), options);
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(last.ask(request(prompts(i), 5)).client->usage().cached_tokens, 96) << i;
  }
}

TEST_P(Session, TheFolderStaysWithinItsCap) {
  EngineOptions options = small_options();
  options.cache_folder = folder_.path();
  const ModelMemory m = bench_->device().memory(*bench_->model());
  options.cache_folder_bytes = std::max<int64_t>(300000, 4 * (m.checkpoint_slot + 7 * m.kv_page));
  bench_.reset();
  for (uint64_t i = 0; i < 4; ++i) {
    Bench b(fixture(GetParam().folder), model_options(), options);
    for (uint64_t j = 0; j < 6; ++j) b.ask(request(some_ids(100, 10 * i + j), 4));
    b.expect_quiet();
  }
  const std::string cut_off = files(".snapshot").at(0).string() + ".77.tmp";
  write_text(cut_off, "half a file");
  {
    const Bench again(fixture(GetParam().folder), model_options(), options);
  }
  EXPECT_FALSE(fs::exists(cut_off));
  int64_t total = 0;
  for (const auto& file : files(".snapshot")) total += static_cast<int64_t>(fs::file_size(file));
  EXPECT_GT(total, 0);
  EXPECT_LE(total, options.cache_folder_bytes);
}

TEST_P(Session, NamesAndUnfinishedRequestsAreRefused) {
  const Sent sent = bench_->ask(request(some_ids(10, 9), 2));
  using Kind = Refusal::Kind;
  EXPECT_EQ(engine().save_session(sent.id, "")->kind, Kind::kInvalid);
  EXPECT_EQ(engine().save_session(sent.id, std::string(101, 'x'))->kind, Kind::kFailed);
  EXPECT_EQ(engine().save_session(sent.id + 1, "x")->kind, Kind::kUnknownRequest);
  EXPECT_FALSE(engine().save_session(sent.id, "../../etc/passwd \n"));
  EXPECT_EQ(files(".session").size(), 1u);
  EXPECT_FALSE(engine().restore_session("../../etc/passwd \n"));
}

// A session that is one too many leaves no file either.
// Each session is on the disk before the next one: for one family, as it takes a minute.
class ManySessions : public Session {};
TEST_P(ManySessions, TooManyAreRefusedWhole) {
  const Sent sent = bench_->ask(request(some_ids(3, 9), 1));
  ASSERT_FALSE(engine().save_session(sent.id, "0"));
  for (int i = 1; i < 4096; ++i) {
    ASSERT_FALSE(engine().fork_session("0", std::to_string(i), 1)) << i;
  }
  EXPECT_EQ(engine().fork_session("0", "more", 1)->kind, Refusal::Kind::kConflict);
  EXPECT_EQ(files(".session").size(), 4096u);
  EXPECT_FALSE(engine().fork_session("0", "17", 2));
}

INSTANTIATE_TEST_SUITE_P(Runtime, ManySessions, testing::Values(SessionCase{"gdn", "qwen3_5_bf16"}),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Runtime, Session,
                         testing::Values(SessionCase{"gdn", "qwen3_5_bf16"},
                                         SessionCase{"mamba2", "nemotron_h_bf16"},
                                         SessionCase{"gdn_moe", "kernels_qwen3_5_moe"},
                                         SessionCase{"mamba2_moe", "kernels_nemotron_h_moe"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace replayssm
