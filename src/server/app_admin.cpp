// The routes that generate nothing.
#include <algorithm>

#include "core/utf8.h"
#include "server/app.h"
#include "server/chat/chat_template.h"
#include "server/grammar/grammar.h"
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

// `body`, unless the engine refused.
Reply reply_unless(const std::optional<Refusal>& refusal, const Json& body) {
  if (refusal) throw_refusal(*refusal);
  return json_response(body);
}

}  // namespace

Reply App::health(const HttpRequest&) { return json_response({{"status", "ok"}}); }

Reply App::page(const HttpRequest&) {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.body = page_html();
  response.headers.emplace_back("Content-Security-Policy",
                                "default-src 'none'; connect-src 'self'; script-src "
                                "'unsafe-inline'; style-src 'unsafe-inline'; img-src data:");
  return response;
}

Json App::model_object() const {
  return {{"id", model_.name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "replayssm"},
          {"max_model_len", model_.max_positions}};
}

Reply App::models(const HttpRequest&) {
  return json_response({{"object", "list"}, {"data", Json::array({model_object()})}});
}

Reply App::model(const HttpRequest& request) {
  const std::string name = request.path.substr(std::string_view("/v1/models/").size());
  if (name != model_.name) {
    throw ApiError(404, concat("there is no model \"", name.substr(0, 128), "\""), "model",
                   "model_not_found");
  }
  return json_response(model_object());
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
    ids = special ? model_.tokenizer->encode_prompt(*prompt) : model_.tokenizer->encode(*prompt);
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
  const auto ids = fields.token_ids("tokens", size_t{1} << 24, model_.vocab);
  return json_response({{"prompt", to_valid_utf8(model_.tokenizer->decode(ids))}});
}

Reply App::metrics(const HttpRequest&) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_.text(engine_.stats(), engine_.memory());
  return response;
}

Reply App::stats(const HttpRequest&) {
  const EngineStats s = engine_.stats();
  const MemoryReport memory = engine_.memory();
  Json purposes = Json::object();
  for (const auto& [purpose, bytes] : memory.purposes) purposes[purpose] = bytes;
  return json_response({{"model", model_.name},
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
  const std::string name =
      session_name(request.path.substr(std::string_view("/v1/sessions/").size()), "name");
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
