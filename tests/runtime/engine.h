// Shared by the engine tests: an engine over a small model, and clients that remember what they
// were told.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <random>

#include "../model/testing.h"
#include "core/thread_pool.h"
#include "runtime/engine.h"
#include "runtime/generate.h"
#include "test_device.h"

namespace replayssm {

constexpr int32_t kFixtureVocab = 120;

inline std::string demo(const std::string& name) {
  return std::string(REPLAYSSM_SOURCE_DIR) + "/models/" + name;
}

inline std::vector<int32_t> some_ids(size_t n, uint64_t seed, int32_t vocab = kFixtureVocab) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> out(n);
  for (auto& id : out) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
  return out;
}

// What one request was told.
class Client final : public Listener {
 public:
  struct Answer {
    std::vector<int32_t> ids;
    std::vector<TokenLogprob> logprobs;
    std::optional<FinishReason> reason;
    bool operator==(const Answer& other) const {
      if (ids != other.ids || logprobs.size() != other.logprobs.size()) return false;
      for (size_t i = 0; i < logprobs.size(); ++i) {
        const TokenLogprob &a = logprobs[i], &b = other.logprobs[i];
        if (a.token != b.token || a.logprob != b.logprob || a.top != b.top) return false;
      }
      return reason == other.reason;
    }
  };

  // Calls with each batch of events; what it returns is kept. Empty: all is.
  std::function<size_t(std::span<const TokenEvent>)> on_tokens;

  void prompt_logprobs(std::vector<TokenLogprob> logprobs) override {
    prompt_logprobs_ = std::move(logprobs);
  }
  size_t tokens(std::span<const TokenEvent> events) override {
    const size_t kept = on_tokens ? on_tokens(events) : events.size();
    const std::lock_guard lock(mutex_);
    for (const TokenEvent& event : events.first(kept)) {
      Answer& answer = answers_[event.choice];
      EXPECT_FALSE(answer.reason.has_value()) << "a token after the end";
      answer.ids.push_back(event.token);
      if (event.logprob) answer.logprobs.push_back(*event.logprob);
    }
    changed_.notify_all();
    return kept;
  }
  void choice_finished(int32_t choice, FinishReason reason) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(answers_[choice].reason.has_value()) << "ended twice";
    answers_[choice].reason = reason;
  }
  void finished(const RequestUsage& usage, const std::string& error) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(finished_) << "finished twice";
    usage_ = usage;
    error_ = error;
    finished_ = true;
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return finished_; });
  }
  // Until `n` tokens of choice 0 have come, or it has finished.
  void wait_for_tokens(size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ || answers_[0].ids.size() >= n; });
  }
  // After wait().
  const Answer& answer(int32_t choice = 0) { return answers_[choice]; }
  const std::vector<int32_t>& ids() { return answers_[0].ids; }
  const std::map<int32_t, Answer>& answers() const { return answers_; }
  const std::vector<TokenLogprob>& prompt() const { return prompt_logprobs_; }
  const RequestUsage& usage() const { return usage_; }
  const std::string& error() const { return error_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int32_t, Answer> answers_;
  std::vector<TokenLogprob> prompt_logprobs_;
  RequestUsage usage_;
  std::string error_;
  bool finished_ = false;
};

struct Sent {
  std::shared_ptr<Client> client = std::make_shared<Client>();
  RequestId id = 0;
};

// An engine with its device, model and threads. NaN fills what is free.
class Bench {
 public:
  Bench(const std::string& folder, const ModelOptions& model_options, EngineOptions options,
        int n_threads = 1, const OpenDevice& open = open_device)
      : pool_(n_threads),
        context_(pool_),
        device_(open(context_)),
        model_(Model::load(folder, model_options)),
        options_(std::move(options)) {
    options_.test_hooks = true;
    restart();
  }

  void restart() {
    engine_.reset();
    engine_ = make_engine(model_, *device_, context_, options_);
  }
  EngineOptions& options() { return options_; }
  Engine& engine() { return *engine_; }
  const Device& device() const { return *device_; }
  const std::shared_ptr<const Model>& model() const { return model_; }
  const ops::Context& context() const { return context_; }

  Sent send(GenerationRequest request, std::shared_ptr<Client> client = nullptr) {
    Sent sent;
    if (client != nullptr) sent.client = std::move(client);
    const auto refusal = engine_->submit(std::move(request), sent.client, &sent.id);
    EXPECT_FALSE(refusal.has_value()) << (refusal ? refusal->field + " " + refusal->message : "");
    return sent;
  }
  // The answer of a request sent alone.
  Sent ask(GenerationRequest request) {
    Sent sent = send(std::move(request));
    sent.client->wait();
    EXPECT_EQ(sent.client->error(), "");
    return sent;
  }

  Engine::FinalState final_state(RequestId id) {
    Engine::FinalState state;
    EXPECT_FALSE(engine_->final_state(id, &state).has_value()) << id;
    return state;
  }

  // As the command line's generate() has it. The engine must be quiet: they share threads.
  std::vector<int32_t> alone(const GenerationRequest& request) const {
    Runner runner(model_, *device_, {1, options_.max_positions, 256, 8});
    ops::Sampler sampler(context_, model_->spec().vocab);
    GenerateParams params;
    params.max_new_tokens = request.max_new_tokens;
    params.sampling = request.sampling;
    params.stop_ids = request.stop_ids;
    std::vector<int32_t> ids;
    generate(runner, sampler, nullptr, request.prompt, params,
             [&](int32_t id) { ids.push_back(id); });
    return ids;
  }

  // All that was lent is back; what the cache keeps is counted as its own.
  void expect_quiet() {
    for (int i = 0; i < 2000; ++i) {
      const EngineStats s = engine_->stats();
      if (s.running == 0 && s.queued == 0 && s.rings_free == s.rings &&
          s.slots_free + s.snapshots == s.slots && s.pages_free + s.snapshot_pages == s.pages) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const EngineStats s = engine_->stats();
    EXPECT_EQ(s.running, 0);
    EXPECT_EQ(s.queued, 0);
    EXPECT_EQ(s.rings_free, s.rings);
    EXPECT_EQ(s.slots_free + s.snapshots, s.slots);
    EXPECT_EQ(s.pages_free + s.snapshot_pages, s.pages);
  }

 private:
  ThreadPool pool_;
  ops::Context context_;
  std::unique_ptr<Device> device_;
  std::shared_ptr<const Model> model_;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
};

inline GenerationRequest request_of(std::vector<int32_t> prompt, int64_t max_new_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = max_new_tokens;
  return request;
}

// A fixture's engine: small chunks and intervals, so that short texts meet every edge.
inline EngineOptions small_options() {
  EngineOptions options;
  options.memory_bytes = (int64_t{24} << 20) + device_overhead_bytes();
  options.max_positions = 512;
  options.max_sequences = 8;
  options.chunk_tokens = 64;
  options.snapshot_interval = 32;
  options.draft_tokens = 3;
  return options;
}

}  // namespace replayssm
