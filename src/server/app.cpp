#include "server/app.h"

#include <algorithm>
#include <cctype>
#include <random>

#include "server/answer/completion_answer.h"
#include "server/apis/messages_answer.h"
#include "server/apis/response_store.h"
#include "server/chat/chat_template.h"
#include "server/chat/message_parser.h"
#include "server/grammar/grammar.h"
#include "server/page.h"
#include "server/request/completion.h"

namespace replayssm::server {
namespace {

constexpr size_t kMaxRecent = 4096;

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

// logfmt: quotes where they are needed.
std::string log_value(const std::string& value) {
  const bool plain = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return c > ' ' && c != '"' && c != '=' && c != '\\' && c != 0x7f;
  });
  return plain ? value : dump_json(Json(value));
}

// In the form of the API that was asked.
HttpResponse error_response(const HttpRequest& request, const ApiError& error) {
  const bool messages = request.path == "/v1/messages" || request.path.starts_with("/v1/messages/");
  return messages ? messages_error(error, request.id) : error.response();
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
      responses_(std::make_unique<ResponseStore>()),
      created_(unix_seconds()),
      begin_(std::chrono::steady_clock::now()) {}

App::~App() = default;

Reply App::handle(HttpRequest request) {
  std::string route = "other";
  Reply reply;
  const auto begin = std::chrono::steady_clock::now();
  try {
    reply = dispatch(request, route);
  } catch (const ApiError& e) {
    reply = error_response(request, e);
  } catch (const std::bad_alloc&) {
    reply = error_response(request, ApiError(500, "out of memory"));
  } catch (const std::exception& e) {
    reply = error_response(request, ApiError(500, e.what()));
  }
  const auto* response = std::get_if<HttpResponse>(&reply);
  if (response == nullptr) return reply;  // counted at its end
  metrics_.request(route, response->status);
  const bool quiet = std::any_of(routes().begin(), routes().end(), [&](const Route& r) {
    return r.quiet && route == r.path && response->status == 200;
  });
  if (options_.log && !quiet) {
    RequestRecord record;
    record.id = request.id;
    record.path = route == "other" ? request.path.substr(0, 256) : route;
    record.status = response->status;
    record.seconds = seconds_since(begin);
    if (response->status >= 400) record.error = response->body.substr(0, 512);
    log_record(record);
  }
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
        request, ApiError(405, concat(request.method, " is not possible here; there is: ", methods),
                          "", "method_not_allowed"));
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
  const CompletionRequest parsed =
      parse_completion(parse_body(request), model_, options_.test_hooks);
  EngineRequest engine;
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
  head.model = model_.name;
  head.created = unix_seconds();
  head.stream = common.stream;
  head.include_usage = common.include_usage;
  head.warnings = common.warnings;
  return head;
}

// One request of the engine for each prompt; all of them or, throwing ApiError, none.
std::vector<Source> App::submit(const AnswerHead& head, const EngineRequest& request) {
  const CommonRequest& common = *request.common;
  GenerationOptions options;
  options.n = common.engine.n;
  options.stops = common.stops;
  options.keep_tokens = request.keep_tokens;
  options.hidden = !common.skip_special_tokens ? nullptr : request.chat ? hidden_in_chat_ : hidden_;
  options.wake_each = common.stream;
  std::vector<Source> sources;
  for (const auto& prompt : request.prompts) {
    GenerationRequest engine = common.engine;
    engine.name = head.request_id;
    engine.prompt = prompt;
    engine.max_new_tokens = std::max<int64_t>(1, *common.max_tokens);
    engine.constraint = request.constraint;
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
  return {[this](RequestId id) { engine_.cancel(id); },
          [this, route](const RequestRecord& record) {
            metrics_.request(route, record.status);
            metrics_.answer(record);
            if (options_.log) log_record(record);
          }};
}

void App::log_record(const RequestRecord& record) {
  std::string line = "request";
  const auto add = [&](const char* key, const std::string& value) {
    line += concat(" ", key, "=", log_value(value));
  };
  const auto milliseconds = [&](const char* key, double seconds) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.2f", seconds * 1e3);
    add(key, text);
  };
  add("id", record.id);
  add("path", record.path);
  add("status", std::to_string(record.status));
  if (!record.answer.empty()) {
    const RequestUsage& usage = record.usage;
    add("answer", record.answer);
    add("stream", record.stream ? "true" : "false");
    add("prompt_tokens", std::to_string(usage.prompt_tokens));
    add("cached_tokens", std::to_string(usage.cached_tokens));
    if (!usage.cache_note.empty()) add("cache_note", usage.cache_note);
    add("new_tokens", std::to_string(record.new_tokens));
    add("drafted", std::to_string(usage.drafted));
    add("accepted", std::to_string(usage.accepted));
    add("preemptions", std::to_string(usage.preemptions));
    milliseconds("queue_ms", usage.queue_seconds);
    milliseconds("prefill_ms", usage.prefill_seconds);
    milliseconds("decode_ms", usage.decode_seconds);
    if (record.first_seconds >= 0) milliseconds("first_ms", record.first_seconds);
    if (record.cancelled) add("cancelled", "true");
  }
  milliseconds("total_ms", record.seconds);
  if (!record.error.empty()) add("error", record.error);
  options_.log(line);
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
