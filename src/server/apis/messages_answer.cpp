#include "server/apis/messages_answer.h"

namespace replayssm::server {
namespace {

using Kind = MessageDelta::Kind;

// Anthropic signs its reasoning; clients send the signature back with it. Nothing is checked here.
constexpr const char* kSignature = "replayssm";

}  // namespace

MessagesAnswer::MessagesAnswer(AnswerHead head, Source source, Hooks hooks,
                               const ChatRequest& request, const ServedModel& model,
                               bool parallel_calls)
    : ItemAnswer(std::move(head), std::move(source), std::move(hooks), request, model,
                 parallel_calls),
      n_prompt_(std::ssize(request.prompt.ids)) {}

const char* MessagesAnswer::stop_reason() const {
  if (reason() == FinishReason::kLength) return "max_tokens";
  if (n_calls() > 0) return "tool_use";
  return stop().empty() ? "end_turn" : "stop_sequence";
}

// Anthropic's input_tokens are those that were not in the cache.
Json MessagesAnswer::usage(int64_t input, int64_t cached) const {
  return {{"input_tokens", input - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", new_tokens()}};
}

Json MessagesAnswer::block_json(size_t index) const {
  const AnswerItem& item = items()[index];
  if (item.kind == Kind::kReasoning) {
    return {{"type", "thinking"}, {"thinking", item.text}, {"signature", kSignature}};
  }
  if (item.kind == Kind::kContent) return {{"type", "text"}, {"text", item.text}};
  return {{"type", "tool_use"},
          {"id", concat("toolu_", head().id.substr(head().id.find('_') + 1), "_", index)},
          {"name", item.call.name},
          {"input", Json::parse(item.call.arguments)}};
}

Json MessagesAnswer::message_json() const {
  return {{"id", head().id},          {"type", "message"},           {"role", "assistant"},
          {"model", head().model},    {"content", Json::array()},    {"stop_reason", nullptr},
          {"stop_sequence", nullptr}, {"usage", usage(n_prompt_, 0)}};
}

Json MessagesAnswer::whole() {
  Json json = message_json();
  for (size_t i = 0; i < items().size(); ++i) json["content"].push_back(block_json(i));
  json["stop_reason"] = stop_reason();
  if (stop_reason() == std::string_view("stop_sequence")) json["stop_sequence"] = stop();
  json["usage"] = usage(engine_usage().prompt_tokens, engine_usage().cached_tokens);
  json["replayssm"] = report();
  return json;
}

void MessagesAnswer::on_stream_begin(std::string* out) {
  append_named_event(out, {{"type", "message_start"}, {"message", message_json()}});
  append_named_event(out, {{"type", "ping"}});
}

void MessagesAnswer::on_item(size_t index, std::string* out) {
  Json block = block_json(index);
  for (const char* field : {"text", "thinking", "signature"}) {
    if (block.contains(field)) block[field] = "";
  }
  if (block.contains("input")) block["input"] = Json::object();
  append_named_event(
      out,
      {{"type", "content_block_start"}, {"index", index}, {"content_block", std::move(block)}});
}

void MessagesAnswer::send_delta(size_t index, Json delta, std::string* out) const {
  append_named_event(
      out, {{"type", "content_block_delta"}, {"index", index}, {"delta", std::move(delta)}});
}

void MessagesAnswer::on_text(size_t index, const std::string& text, std::string* out) {
  if (items()[index].kind == Kind::kReasoning) {
    send_delta(index, {{"type", "thinking_delta"}, {"thinking", text}}, out);
  } else {
    send_delta(index, {{"type", "text_delta"}, {"text", text}}, out);
  }
}

void MessagesAnswer::on_item_end(size_t index, std::string* out) {
  const AnswerItem& item = items()[index];
  if (item.kind == Kind::kReasoning) {
    send_delta(index, {{"type", "signature_delta"}, {"signature", kSignature}}, out);
  } else if (item.kind == Kind::kToolCall) {
    send_delta(index, {{"type", "input_json_delta"}, {"partial_json", item.call.arguments}}, out);
  }
  append_named_event(out, {{"type", "content_block_stop"}, {"index", index}});
}

void MessagesAnswer::on_stream_end(std::string* out) {
  Json json = whole();
  append_named_event(
      out,
      {{"type", "message_delta"},
       {"delta", {{"stop_reason", json["stop_reason"]}, {"stop_sequence", json["stop_sequence"]}}},
       {"usage", json["usage"]},
       {"replayssm", json["replayssm"]}});
  append_named_event(out, {{"type", "message_stop"}});
}

HttpResponse MessagesAnswer::error_response(const ApiError& error) const {
  return server::error_response(head().path, head().request_id, error);
}

void MessagesAnswer::on_stream_error(const ApiError& error, std::string* out) {
  append_named_event(out, messages_error(error, head().request_id));
}

}  // namespace replayssm::server
