// The routes that generate nothing.
#include <algorithm>

#include "core/utf8.h"
#include "server/app.h"
#include "server/chat/chat_template.h"
#include "server/grammar/grammar.h"
#include "server/http/framing.h"
#include "server/page.h"
#include "server/request/chat.h"

namespace replayssm::server {
namespace {

HttpResponse json_response(const Json& body) {
  HttpResponse response;
  response.body = dump_json(body);
  return response;
}

std::string required(Fields& fields, const std::string& name) {
  auto value = fields.string(name);
  if (!value || value->empty()) refuse(name, "is missing");
  return *value;
}

// What follows `prefix`, percent-decoded.
std::string name_in_path(const HttpRequest& request, std::string_view prefix) {
  const auto name = percent_decoded(std::string_view(request.path).substr(prefix.size()));
  if (!name) throw ApiError(400, "the path holds a malformed %XX", "", "invalid_path");
  return *name;
}

// `body`, unless the engine refused.
Reply reply_unless(const std::optional<Refusal>& refusal, const Json& body) {
  if (refusal) throw_refusal(*refusal);
  return json_response(body);
}

}  // namespace

// Also /ready: a server that listens and has its model is ready until it drains.
Reply App::health(const HttpRequest&) {
  if (draining_) throw ApiError(503, "the server is stopping");
  return json_response({{"status", "ok"}});
}

Reply App::load(const HttpRequest&) {
  const EngineStats stats = engine_.stats();
  return json_response({{"load", stats.running + stats.queued}});
}

Reply App::server_info(const HttpRequest&) {
  const EngineStats stats = engine_.stats();
  return json_response({{"served_model_name", model_.names.front()},
                        {"max_model_len", model_.max_positions},
                        {"max_total_num_tokens", stats.pages * ops::kKvPage},
                        {"max_running_requests", stats.rings},
                        {"status", draining_ ? "stopping" : "ready"}});
}

Reply App::model_info(const HttpRequest&) {
  return json_response({{"model_path", model_.names.front()},
                        {"tokenizer_path", model_.names.front()},
                        {"is_generation", true},
                        {"has_chat_template", model_.chat_template != nullptr},
                        {"max_model_len", model_.max_positions},
                        {"vocab_size", model_.vocab}});
}

Reply App::page(const HttpRequest&) {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.body = page_html();
  response.headers.emplace_back("Content-Security-Policy",
                                "default-src 'none'; connect-src 'self'; script-src "
                                "'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
                                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  response.headers.emplace_back("X-Frame-Options", "DENY");
  return response;
}

// As vLLM fills it.
Json App::model_object(const std::string& name) const {
  const std::string id = "modelperm-" + name;
  Json permission = {{"id", id},
                     {"object", "model_permission"},
                     {"created", created_},
                     {"allow_create_engine", false},
                     {"allow_sampling", true},
                     {"allow_logprobs", true},
                     {"allow_search_indices", false},
                     {"allow_view", true},
                     {"allow_fine_tuning", false},
                     {"organization", "*"},
                     {"group", nullptr},
                     {"is_blocking", false}};
  return {{"id", name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "replayssm"},
          {"root", model_.names.front()},
          {"parent", nullptr},
          {"max_model_len", model_.max_positions},
          {"permission", Json::array({std::move(permission)})}};
}

Reply App::models(const HttpRequest&) {
  Json data = Json::array();
  for (const std::string& name : model_.names) data.push_back(model_object(name));
  return json_response({{"object", "list"}, {"data", std::move(data)}});
}

Reply App::model(const HttpRequest& request) {
  const std::string name = name_in_path(request, "/v1/models/");
  if (!model_.has_name(name)) {
    throw ApiError(404, concat("there is no model \"", name.substr(0, 128), "\""), "model",
                   "model_not_found");
  }
  return json_response(model_object(name));
}

Reply App::embeddings(const HttpRequest&) {
  throw ApiError(501, "this server makes no embeddings", "", "not_implemented");
}

Reply App::tokenize(const HttpRequest& request) {
  const Json body = parse_body(request);
  Fields fields(body, "");
  std::vector<int32_t> ids;
  if (const auto prompt = fields.string("prompt")) {
    const bool special = fields.boolean("add_special_tokens").value_or(true);
    ids = model_.encode(*prompt, special, "prompt");
  } else {
    ids = chat_prompt(body, model_).ids;
  }
  return json_response(
      {{"count", ids.size()}, {"max_model_len", model_.max_positions}, {"tokens", ids}});
}

Reply App::detokenize(const HttpRequest& request) {
  const Json body = parse_body(request);
  Fields fields(body, "");
  if (fields.find("tokens") == nullptr) refuse("tokens", "is missing");
  const auto ids = fields.token_ids("tokens", size_t{1} << 20, model_.vocab);
  return json_response({{"prompt", to_valid_utf8(model_.tokenizer->decode(ids))}});
}

Reply App::metrics(const HttpRequest&) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = journal_->metrics().text(model_.names.front(), engine_.stats(), engine_.memory());
  return response;
}

Reply App::stats(const HttpRequest&) {
  const EngineStats s = engine_.stats();
  const MemoryReport memory = engine_.memory();
  Json purposes = Json::object();
  for (const auto& [purpose, bytes] : memory.purposes) purposes[purpose] = bytes;
  return json_response({{"model", model_.names.front()},
                        {"max_positions", model_.max_positions},
                        {"seconds", seconds_since(begin_)},
                        {"running", s.running},
                        {"queued", s.queued},
                        {"slots", s.slots},
                        {"slots_free", s.slots_free},
                        {"rings", s.rings},
                        {"rings_free", s.rings_free},
                        {"pages", s.pages},
                        {"pages_free", s.pages_free},
                        {"snapshots", s.snapshots},
                        {"snapshot_pages", s.snapshot_pages},
                        {"snapshot_bytes", s.snapshot_bytes},
                        {"host_snapshots", s.host_snapshots},
                        {"host_snapshot_bytes", s.host_snapshot_bytes},
                        {"steps", s.steps},
                        {"prompt_tokens", s.prompt_tokens},
                        {"cached_tokens", s.cached_tokens},
                        {"new_tokens", s.new_tokens},
                        {"drafted", s.drafted},
                        {"accepted", s.accepted},
                        {"preemptions", s.preemptions},
                        {"cancelled", s.cancelled},
                        {"evicted", s.evicted},
                        {"refused_corrupt", s.refused_corrupt},
                        {"state_bytes_moved", s.state_bytes_moved},
                        {"state_bytes_plain", s.state_bytes_plain},
                        {"memory", {{"budget", memory.budget}, {"purposes", purposes}}}});
}

Reply App::list_sessions(const HttpRequest&) {
  Json data = Json::array();
  for (const SessionInfo& session : engine_.sessions()) {
    data.push_back({{"name", session.name},
                    {"object", "session"},
                    {"tokens", session.tokens < 0 ? Json() : Json(session.tokens)},
                    {"saved", session.saved}});
  }
  return json_response({{"object", "list"}, {"data", std::move(data)}});
}

Reply App::save_session(const HttpRequest& request) {
  const Json body = parse_body(request);
  Fields fields(body, "");
  const std::string name = session_name(required(fields, "name"), "name");
  const RequestId id = recall(required(fields, "request"), "request");
  return reply_unless(engine_.save_session(id, name), {{"name", name}, {"object", "session"}});
}

Reply App::restore_session(const HttpRequest& request) {
  const Json body = parse_body(request);
  Fields fields(body, "");
  const std::string name = session_name(required(fields, "name"), "name");
  return reply_unless(engine_.restore_session(name), {{"name", name}, {"object", "session"}});
}

Reply App::fork_session(const HttpRequest& request) {
  const Json body = parse_body(request);
  Fields fields(body, "");
  const std::string from = session_name(required(fields, "from"), "from");
  const std::string to = session_name(required(fields, "to"), "to");
  const auto length = fields.integer("length", 1, model_.max_positions);
  if (!length) refuse("length", "is missing: how many tokens of the text to keep");
  return reply_unless(engine_.fork_session(from, to, *length),
                      {{"name", to}, {"object", "session"}, {"length", *length}});
}

Reply App::drop_session(const HttpRequest& request) {
  const std::string name = session_name(name_in_path(request, "/v1/sessions/"), "name");
  return reply_unless(engine_.drop_session(name),
                      {{"name", name}, {"object", "session"}, {"deleted", true}});
}

Reply App::test_preempt(const HttpRequest& request) {
  const Json body = parse_body(request);
  Fields fields(body, "");
  return reply_unless(engine_.preempt(recall(required(fields, "request"), "request")),
                      {{"preempted", true}});
}

Reply App::test_state(const HttpRequest& request) {
  const Json body = parse_body(request);
  Fields fields(body, "");
  Engine::FinalState state;
  const auto refusal = engine_.final_state(recall(required(fields, "request"), "request"), &state);
  return reply_unless(refusal, {{"hash", state.hash}, {"tokens", state.text}});
}

Reply App::test_drop_cache(const HttpRequest&) {
  return reply_unless(engine_.drop_cache(), {{"dropped", true}});
}

}  // namespace replayssm::server
