// An engine of scripted tokens: what the server makes of a request and of the answer to it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine.h"

namespace replayssm {

// What one request answers, the same for each choice.
struct Script {
  std::vector<int32_t> tokens;
  size_t step = 1;                     // tokens a step; all but a step's last count as drafted
  std::chrono::milliseconds pause{0};  // after each step
  FinishReason reason = FinishReason::kStopId;
  std::string error;
};

// One thread a request. With hold(), requests wait before their first token until release().
class FakeEngine final : public Engine {
 public:
  ~FakeEngine() override {
    release();
    for (auto& thread : threads_) thread.join();
  }

  Script script;
  std::optional<Refusal> refusal;
  std::optional<Refusal> session_refusal;
  std::vector<int32_t> session_text;  // of every session

  std::optional<Refusal> submit(GenerationRequest request, std::shared_ptr<Listener> listener,
                                RequestId* id) override {
    const std::lock_guard lock(mutex_);
    if (refusal) return refusal;
    if (!request.session.empty()) {
      request.prompt.insert(request.prompt.begin(), session_text.begin(), session_text.end());
    }
    *id = ++last_id_;
    ++n_running_;
    requests_.push_back(request);
    threads_.emplace_back([this, request = std::move(request), listener = std::move(listener),
                           id = *id] { run(request, *listener, id); });
    return {};
  }

  void cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(id);
    changed_.notify_all();
  }

  void drain(double) override {
    std::unique_lock lock(mutex_);
    refusal = Refusal{Refusal::Kind::kDraining, "", "the server is stopping"};
    changed_.wait(lock, [this] { return n_running_ == 0; });
  }

  EngineStats stats() const override {
    EngineStats stats;
    stats.slots = 8;
    stats.rings = 8;
    stats.slots_free = 6;
    stats.new_tokens = 77;
    return stats;
  }
  MemoryReport memory() const override { return {1000, {{"weights", 600}, {"KV pages", 100}}}; }

  std::optional<Refusal> save_session(RequestId id, const std::string& name) override {
    calls.push_back(concat("save ", id, " ", name));
    return session_refusal;
  }
  std::optional<Refusal> restore_session(const std::string& name) override {
    calls.push_back("restore " + name);
    return session_refusal;
  }
  std::optional<Refusal> fork_session(const std::string& from, const std::string& to,
                                      int64_t length) override {
    calls.push_back(concat("fork ", from, " ", to, " ", length));
    return session_refusal;
  }
  std::optional<Refusal> drop_session(const std::string& name) override {
    calls.push_back("drop " + name);
    return session_refusal;
  }
  std::vector<SessionInfo> sessions() const override { return {{"a", 7, true}, {"b", -1, true}}; }
  std::optional<Refusal> preempt(RequestId id) override {
    calls.push_back(concat("preempt ", id));
    return {};
  }
  std::optional<Refusal> final_state(RequestId, FinalState* state) override {
    *state = {"0123456789abcdef", {1, 2}};
    return {};
  }
  std::optional<Refusal> drop_cache() override {
    calls.push_back("drop_cache");
    return {};
  }

  std::vector<std::string> calls;

  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  // Until the request was cancelled; false after 10 s.
  bool wait_cancelled(RequestId id) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10),
                             [&] { return cancelled_.contains(id); });
  }
  bool wait_submitted(size_t n) {
    for (int i = 0; i < 1000; ++i) {
      if (requests().size() >= n) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  std::vector<GenerationRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void run(const GenerationRequest& request, Listener& listener, RequestId id) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !held_ || cancelled_.contains(id); });
    }
    RequestUsage usage;
    usage.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    usage.cached_tokens = 3;
    usage.cache_note = "scripted";
    if (request.prompt_logprobs >= 0) {
      std::vector<TokenLogprob> logprobs;
      for (size_t i = 1; i < request.prompt.size(); ++i) {
        logprobs.push_back({request.prompt[i], -0.25 * static_cast<double>(i), {}});
      }
      listener.prompt_logprobs(std::move(logprobs));
    }
    for (int32_t choice = 0; choice < request.n; ++choice) {
      listener.choice_finished(choice, generate(request, listener, id, choice, usage));
    }
    listener.finished(usage, script.error);
    const std::lock_guard lock(mutex_);
    --n_running_;
    changed_.notify_all();
  }

  FinishReason generate(const GenerationRequest& request, Listener& listener, RequestId id,
                        int32_t choice, RequestUsage& usage) {
    size_t at = 0;
    while (at < script.tokens.size()) {
      {
        const std::lock_guard lock(mutex_);
        if (cancelled_.contains(id)) return FinishReason::kCancelled;
      }
      const size_t room = static_cast<size_t>(request.max_new_tokens) - at;
      if (room == 0) return FinishReason::kLength;
      const size_t n = std::min({script.step, script.tokens.size() - at, room});
      std::vector<TokenEvent> events;
      for (size_t i = 0; i < n; ++i) {
        TokenEvent event;
        event.choice = choice;
        event.token = script.tokens[at + i];
        event.from_draft = i + 1 < n;
        if (request.logprobs >= 0) {
          event.logprob = TokenLogprob{event.token, -0.5, {}};
          for (int32_t k = 0; k < request.logprobs; ++k) {
            event.logprob->top.emplace_back(event.token, k == 0 ? -0.5 : -INFINITY);
          }
        }
        events.push_back(event);
      }
      usage.drafted += static_cast<int64_t>(n) - 1;
      usage.accepted += static_cast<int64_t>(n) - 1;
      const size_t kept = listener.tokens(events);
      std::this_thread::sleep_for(script.pause);
      usage.new_tokens += static_cast<int64_t>(kept);
      if (kept < n) return FinishReason::kStopped;
      at += n;
    }
    return static_cast<size_t>(request.max_new_tokens) == at ? FinishReason::kLength
                                                             : script.reason;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  int n_running_ = 0;
  RequestId last_id_ = 0;
  std::set<RequestId> cancelled_;
  std::vector<GenerationRequest> requests_;
  std::vector<std::thread> threads_;
};

}  // namespace replayssm
