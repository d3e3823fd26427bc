#include "server/app.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <random>

#include "server/answer/completion_answer.h"
#include "server/apis/response_store.h"
#include "server/chat/chat_template.h"
#include "server/chat/message_parser.h"
#include "server/grammar/grammar.h"
#include "server/page.h"
#include "server/request/completion.h"

namespace replayssm::server {
namespace {

constexpr size_t kMaxRecent = 4096;
constexpr int64_t kMaxPromptLogprobs = int64_t{1} << 18;  // of one HTTP request

// Takes the same time wherever the first difference stands.
bool same_key(std::string_view key, std::string_view given) {
  size_t difference = key.size() ^ given.size();
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(key[i % key.size()] ^ given[i]);
  }
  return difference == 0;
}

std::string random_hex() {
  thread_local std::mt19937_64 engine{std::random_device{}()};
  char text[40];
  std::snprintf(text, sizeof(text), "%016llx%08x", static_cast<unsigned long long>(engine()),
                static_cast<unsigned>(engine()));
  return text;
}

// Messages name the engine's fields as the client knows them.
std::string client_field(const std::string& field) {
  return field == "max_new_tokens" ? "max_tokens" : field;
}

}  // namespace

void throw_refusal(const Refusal& refusal) {
  const std::string field = client_field(refusal.field);
  const std::string message =
      field.empty() ? refusal.message : concat(field, ": ", refusal.message);
  switch (refusal.kind) {
    case Refusal::Kind::kBusy:
      throw ApiError(429, message, field, "rate_limit_exceeded");
    case Refusal::Kind::kDraining:
      throw ApiError(503, message, field);
    case Refusal::Kind::kUnknownSession:
      throw ApiError(404, message, field.empty() ? "session" : field, "session_not_found");
    case Refusal::Kind::kUnknownRequest:
      throw ApiError(404, message, field.empty() ? "request" : field, "request_not_found");
    case Refusal::Kind::kConflict:
      throw ApiError(409, message, field, "conflict");
    case Refusal::Kind::kFailed:
      throw ApiError(500, message, field);
    case Refusal::Kind::kInvalid:
      break;
  }
  throw ApiError(400, message, field, "invalid_value");
}

struct App::Route {
  const char* method;
  const char* path;  // ends in '/': whatever follows
  Reply (App::*handler)(const HttpRequest&);
  bool open = false;   // needs no key
  bool hooks = false;  // with --test-hooks
  bool quiet = false;  // not logged
};

const std::vector<App::Route>& App::routes() {
  static const std::vector<Route> kRoutes = {
      {"GET", "/", &App::page, true},
      {"GET", "/health", &App::health, true, false, true},
      {"GET", "/ready", &App::health, true, false, true},
      {"GET", "/get_load", &App::load, false, false, true},
      {"GET", "/server_info", &App::server_info},
      {"GET", "/model_info", &App::model_info},
      {"GET", "/v1/models", &App::models},
      {"GET", "/v1/models/", &App::model},
      {"POST", "/v1/completions", &App::completions},
      {"POST", "/v1/chat/completions", &App::chat},
      {"POST", "/v1/responses", &App::responses},
      {"GET", "/v1/responses/", &App::get_response},
      {"DELETE", "/v1/responses/", &App::delete_response},
      {"POST", "/v1/messages", &App::messages},
      {"POST", "/v1/messages/count_tokens", &App::count_tokens},
      {"POST", "/v1/embeddings", &App::embeddings},
      {"POST", "/tokenize", &App::tokenize},
      {"POST", "/detokenize", &App::detokenize},
      {"GET", "/metrics", &App::metrics, false, false, true},
      {"GET", "/stats", &App::stats, false, false, true},
      {"GET", "/v1/sessions", &App::list_sessions},
      {"POST", "/v1/sessions", &App::save_session},
      {"POST", "/v1/sessions/restore", &App::restore_session},
      {"POST", "/v1/sessions/fork", &App::fork_session},
      {"DELETE", "/v1/sessions/", &App::drop_session},
      {"POST", "/test/preempt", &App::test_preempt, false, true},
      {"POST", "/test/state", &App::test_state, false, true},
      {"POST", "/test/drop_cache", &App::test_drop_cache, false, true},
  };
  return kRoutes;
}

App::App(ServedModel model, Engine& engine, AppOptions options)
    : model_(std::move(model)),
      engine_(engine),
      options_(std::move(options)),
      hidden_(std::make_shared<HiddenTokens>(*model_.tokenizer, std::vector<std::string>())),
      hidden_in_chat_(std::make_shared<HiddenTokens>(*model_.tokenizer, chat_marks())),
      grammars_(std::make_unique<GrammarCompiler>(model_)),
      responses_(std::make_unique<ResponseStore>(options_.memory)),
      created_(unix_seconds()),
      begin_(std::chrono::steady_clock::now()),
      journal_(std::make_shared<Journal>(options_.log)) {}

App::~App() = default;

Reply App::handle(HttpRequest request) {
  std::string route = "other";
  Reply reply;
  const auto begin = std::chrono::steady_clock::now();
  try {
    reply = dispatch(request, route);
  } catch (const ApiError& e) {
    reply = error_response(request.path, request.id, e);
  } catch (const std::bad_alloc&) {
    reply = error_response(request.path, request.id, ApiError(500, "out of memory"));
  } catch (const std::exception& e) {
    reply = error_response(request.path, request.id, ApiError(500, e.what()));
  }
  const auto* response = std::get_if<HttpResponse>(&reply);
  if (response == nullptr) return reply;  // counted at its end
  const bool quiet = std::any_of(routes().begin(), routes().end(), [&](const Route& r) {
    return r.quiet && route == r.path && response->status == 200;
  });
  RequestRecord record;
  record.id = request.id;
  record.path = route == "other" ? request.path.substr(0, 256) : route;
  record.status = response->status;
  record.seconds = seconds_since(begin);
  if (response->status >= 400) record.error = response->body.substr(0, 512);
  journal_->request(route, record, quiet);
  return reply;
}

Reply App::dispatch(const HttpRequest& request, std::string& route_name) {
  const Route* found = nullptr;
  std::string methods;
  for (const Route& route : routes()) {
    const std::string_view path = route.path;
    const bool prefix = path.size() > 1 && path.ends_with('/');
    const bool matches = prefix
                             ? request.path.starts_with(path) && request.path.size() > path.size()
                             : request.path == path;
    if (!matches || (route.hooks && !options_.test_hooks)) continue;
    if (!methods.empty()) methods += ", ";
    methods += route.method;
    const bool head = request.method == "HEAD" && std::string_view(route.method) == "GET";
    if (found == nullptr && (head || request.method == route.method)) found = &route;
  }
  if (found == nullptr || !found->open) check_key(request);
  if (methods.empty()) {
    throw ApiError(404, concat("no such path: ", request.path.substr(0, 256)), "", "not_found");
  }
  if (found == nullptr) {
    HttpResponse response = error_response(
        request.path, request.id,
        ApiError(405, concat(request.method, " is not possible here; there is: ", methods), "",
                 "method_not_allowed"));
    response.headers.emplace_back("Allow", methods);
    return response;
  }
  route_name = found->path;
  return (this->*found->handler)(request);
}

void App::check_key(const HttpRequest& request) const {
  if (options_.api_key.empty()) return;
  // The scheme's case does not matter.
  std::string_view given = request.header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  const bool bearer = given.size() >= kBearer.size() &&
                      std::equal(kBearer.begin(), kBearer.end(), given.begin(), [](char a, char b) {
                        return a == std::tolower(static_cast<unsigned char>(b));
                      });
  given = bearer ? given.substr(kBearer.size()) : std::string_view();
  if (!same_key(options_.api_key, given) &&
      !same_key(options_.api_key, request.header("x-api-key"))) {
    throw ApiError(401,
                   "the API key is missing or wrong; send it as Authorization: Bearer KEY or as "
                   "x-api-key: KEY",
                   "", "invalid_api_key");
  }
}

Reply App::completions(const HttpRequest& request) {
  CompletionRequest parsed = parse_completion(parse_body(request), model_, options_.test_hooks);
  EngineRequest engine;
  engine.constraint = grammars_->structured(parsed.common.structure, parsed.common.warnings);
  engine.prompts = parsed.prompts;
  engine.common = &parsed.common;
  engine.keep_tokens = parsed.logprobs >= 0;
  AnswerHead head = answer_head(request, "cmpl-", parsed.common);
  head.drop_text = *parsed.common.max_tokens == 0;
  auto sources = submit(head, engine);
  return std::make_shared<CompletionAnswer>(std::move(head), std::move(sources),
                                            hooks("/v1/completions"), parsed, model_.tokenizer);
}

AnswerHead App::answer_head(const HttpRequest& request, const char* prefix,
                            const CommonRequest& common) const {
  AnswerHead head;
  head.id = prefix + random_hex();
  head.request_id = request.id;
  head.path = request.path;
  head.model = model_.names.front();
  head.created = unix_seconds();
  head.stream = common.stream;
  head.include_usage = common.include_usage;
  head.warnings = common.warnings;
  return head;
}

// Throws ApiError on what no waiting makes possible.
void App::check_fits(const EngineRequest& request) const {
  const auto n_prompts = static_cast<int64_t>(request.prompts.size());
  const EngineStats stats = engine_.stats();
  const int64_t most =
      options_.max_queued > INT64_MAX - stats.rings ? INT64_MAX : stats.rings + options_.max_queued;
  if (n_prompts > most) {
    refuse("prompt", concat("has ", n_prompts, " prompts; this server runs and queues at most ",
                            most, " (--max-sequences, --max-queued)"));
  }
  const int32_t k = request.common->engine.prompt_logprobs;
  if (k < 0) return;
  int64_t n_tokens = 0;
  for (const auto& prompt : request.prompts) n_tokens += std::ssize(prompt);
  if (n_tokens * (k + 1) > kMaxPromptLogprobs) {
    refuse("prompt_logprobs", concat(k + 1, " for each of ", n_tokens, " tokens are more than ",
                                     kMaxPromptLogprobs, "; ask for fewer, or in parts"));
  }
}

// One request of the engine for each prompt; all of them or, throwing ApiError, none.
std::vector<Source> App::submit(const AnswerHead& head, const EngineRequest& request) {
  check_fits(request);
  const CommonRequest& common = *request.common;
  GenerationOptions options;
  options.n = common.engine.n;
  options.stops = common.stops;
  options.keep_tokens = request.keep_tokens;
  options.hidden = !common.skip_special_tokens ? nullptr : request.chat ? hidden_in_chat_ : hidden_;
  options.wake_each = common.stream;
  options.memory = options_.memory;
  std::vector<Source> sources;
  for (const auto& prompt : request.prompts) {
    GenerationRequest engine = common.engine;
    engine.name = head.request_id;
    engine.prompt = prompt;
    engine.max_new_tokens = std::max<int64_t>(1, *common.max_tokens);
    engine.constraint = request.constraint;
    if (common.min_tokens > 0) {
      engine.constraint = no_end_before(common.min_tokens, engine.stop_ids, request.constraint);
    }
    Source source;
    source.generation = std::make_shared<Generation>(model_.tokenizer, options);
    const auto refusal = engine_.submit(std::move(engine), source.generation, &source.engine_id);
    if (refusal) {
      for (const Source& earlier : sources) engine_.cancel(earlier.engine_id);
      throw_refusal(*refusal);
    }
    sources.push_back(std::move(source));
  }
  remember(head.request_id, sources.front().engine_id);
  remember(head.id, sources.front().engine_id);
  return sources;
}

EngineAnswer::Hooks App::hooks(const std::string& route) {
  return {
      [this](RequestId id) { engine_.cancel(id); },
      [journal = journal_, route](const RequestRecord& record) { journal->answer(route, record); }};
}

void App::remember(const std::string& name, RequestId id) {
  const std::lock_guard lock(recent_mutex_);
  if (recent_.insert_or_assign(name, id).second) recent_names_.push_back(name);
  while (recent_names_.size() > kMaxRecent) {
    recent_.erase(recent_names_.front());
    recent_names_.pop_front();
  }
}

RequestId App::recall(const std::string& name, const std::string& field) const {
  const std::lock_guard lock(recent_mutex_);
  const auto at = recent_.find(name);
  if (at == recent_.end()) {
    throw ApiError(404,
                   concat(field, ": no request \"", name.substr(0, 128), "\" is running or recent"),
                   field, "request_not_found");
  }
  return at->second;
}

}  // namespace replayssm::server
