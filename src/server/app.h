// The routes of the server: HTTP requests to requests of the engine and back.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "runtime/engine.h"
#include "server/answer/answer.h"
#include "server/http/message.h"
#include "server/http/request_memory.h"
#include "server/journal.h"
#include "server/request/chat.h"
#include "server/served_model.h"

namespace replayssm::server {

class GrammarCompiler;
class ResponseStore;

// As the ApiError that a client gets.
[[noreturn]] void throw_refusal(const Refusal& refusal);

struct AppOptions {
  std::string api_key;  // empty: none is asked for
  bool test_hooks = false;
  int64_t max_queued = INT64_MAX;               // of the engine
  std::shared_ptr<RequestMemory> memory;        // of answers; null: without a limit
  std::function<void(const std::string&)> log;  // one line a request; may be empty
};

class App {
 public:
  // The engine must outlive the app, and the app all answers that it gave.
  App(ServedModel model, Engine& engine, AppOptions options);
  ~App();

  // Never throws; called by several threads at once.
  Reply handle(HttpRequest request);
  // From now on /health and /ready say 503.
  void begin_drain() { draining_ = true; }

 private:
  struct Route;
  struct EngineRequest {
    std::vector<std::vector<int32_t>> prompts;
    const CommonRequest* common;
    std::shared_ptr<const TokenConstraint> constraint;
    bool keep_tokens = false;
    bool chat = false;
  };
  // A chat that the engine has begun on.
  struct ChatJob {
    ChatRequest request;
    AnswerHead head;
    Source source;
  };

  static const std::vector<Route>& routes();
  Reply dispatch(const HttpRequest& request, std::string& route);
  void check_key(const HttpRequest& request) const;

  Reply health(const HttpRequest& request);
  Reply load(const HttpRequest& request);
  Reply server_info(const HttpRequest& request);
  Reply model_info(const HttpRequest& request);
  Reply page(const HttpRequest& request);
  Reply models(const HttpRequest& request);
  Reply model(const HttpRequest& request);
  Reply completions(const HttpRequest& request);
  Reply chat(const HttpRequest& request);
  Reply responses(const HttpRequest& request);
  Reply get_response(const HttpRequest& request);
  Reply delete_response(const HttpRequest& request);
  Reply messages(const HttpRequest& request);
  Reply count_tokens(const HttpRequest& request);
  Reply embeddings(const HttpRequest& request);
  Reply tokenize(const HttpRequest& request);
  Reply detokenize(const HttpRequest& request);
  Reply metrics(const HttpRequest& request);
  Reply stats(const HttpRequest& request);
  Reply list_sessions(const HttpRequest& request);
  Reply save_session(const HttpRequest& request);
  Reply restore_session(const HttpRequest& request);
  Reply fork_session(const HttpRequest& request);
  Reply drop_session(const HttpRequest& request);
  Reply test_preempt(const HttpRequest& request);
  Reply test_state(const HttpRequest& request);
  Reply test_drop_cache(const HttpRequest& request);

  AnswerHead answer_head(const HttpRequest& request, const char* prefix,
                         const CommonRequest& common) const;
  ChatJob start_chat(const HttpRequest& request, const Json& body, const char* prefix);
  void check_fits(const EngineRequest& request) const;
  std::vector<Source> submit(const AnswerHead& head, const EngineRequest& request);
  EngineAnswer::Hooks hooks(const std::string& route);
  Json model_object(const std::string& name) const;

  void remember(const std::string& name, RequestId id);
  // Throws ApiError (404) naming the field.
  RequestId recall(const std::string& name, const std::string& field) const;

  const ServedModel model_;
  Engine& engine_;
  const AppOptions options_;
  const std::shared_ptr<const HiddenTokens> hidden_;
  // The marks that chats are parsed by stay.
  const std::shared_ptr<const HiddenTokens> hidden_in_chat_;
  const std::unique_ptr<GrammarCompiler> grammars_;
  const std::unique_ptr<ResponseStore> responses_;
  const int64_t created_;
  const std::chrono::steady_clock::time_point begin_;
  const std::shared_ptr<Journal> journal_;
  std::atomic<bool> draining_{false};

  mutable std::mutex recent_mutex_;
  std::unordered_map<std::string, RequestId> recent_;
  std::deque<std::string> recent_names_;  // oldest first
};

}  // namespace replayssm::server
