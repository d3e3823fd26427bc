#include "server/apis/responses_answer.h"

#include <cmath>

namespace replayssm::server {
namespace {

using Kind = MessageDelta::Kind;

// A float as the client wrote it: 0.7, not 0.699999988.
double as_written(float value) { return std::round(static_cast<double>(value) * 1e6) / 1e6; }

// The text of a custom tool's call; the model may have written another kind of value.
std::string custom_input(const std::string& arguments) {
  const Json object = Json::parse(arguments);
  const auto input = object.find("input");
  if (input == object.end()) return {};
  return input->is_string() ? input->get<std::string>() : dump_json(*input);
}

}  // namespace

ResponsesAnswer::ResponsesAnswer(AnswerHead head, Source source, Hooks hooks,
                                 const ChatRequest& request, const ServedModel& model,
                                 ResponsesRequest form, ResponseStore& store)
    : ItemAnswer(std::move(head), std::move(source), std::move(hooks), request, model,
                 form.parallel_calls),
      form_(std::move(form)),
      tokenizer_(model.tokenizer),
      temperature_(as_written(request.common.engine.sampling.temperature)),
      top_p_(as_written(request.common.engine.sampling.top_p)),
      store_(store) {}

const ToolOrigin* ResponsesAnswer::origin(size_t index) const {
  const auto at = form_.origins.find(items()[index].call.name);
  return at == form_.origins.end() ? nullptr : &at->second;
}

bool ResponsesAnswer::custom(size_t index) const {
  const ToolOrigin* tool = origin(index);
  return tool != nullptr && tool->custom;
}

std::string ResponsesAnswer::item_id(size_t index) const {
  const Kind kind = items()[index].kind;
  const char* prefix = kind == Kind::kReasoning ? "rs_"
                       : kind == Kind::kContent ? "msg_"
                       : custom(index)          ? "ctc_"
                                                : "fc_";
  return concat(prefix, head().id.substr(head().id.find('_') + 1), "_", index);
}

Json ResponsesAnswer::part_json(size_t index, const std::string& text) const {
  if (items()[index].kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

Json ResponsesAnswer::item_json(size_t index, bool begun) const {
  const AnswerItem& item = items()[index];
  const bool cut = index + 1 == items().size() && reason() == FinishReason::kLength &&
                   item.kind != Kind::kToolCall;
  Json json = {
      {"id", item_id(index)}, {"type", ""}, {"status", begun ? "in_progress" : "completed"}};
  if (!begun && cut) json["status"] = "incomplete";
  if (item.kind == Kind::kToolCall) {
    json["call_id"] = concat("call_", head().id.substr(head().id.find('_') + 1), "_", index);
    const ToolOrigin* tool = origin(index);
    json["name"] = tool == nullptr ? item.call.name : tool->name;
    if (tool != nullptr && !tool->name_space.empty()) json["namespace"] = tool->name_space;
    if (custom(index)) {
      json["type"] = "custom_tool_call";
      json["input"] = begun ? "" : custom_input(item.call.arguments);
    } else {
      json["type"] = "function_call";
      json["arguments"] = begun ? "" : item.call.arguments;
    }
    return json;
  }
  Json content = begun ? Json::array() : Json::array({part_json(index, item.text)});
  if (item.kind == Kind::kReasoning) {
    json["type"] = "reasoning";
    json["summary"] = Json::array();
    json["content"] = std::move(content);
    if (form_.carry_reasoning && !begun) json["encrypted_content"] = carry_reasoning(item.text);
  } else {
    json["type"] = "message";
    json["role"] = "assistant";
    json["content"] = std::move(content);
  }
  return json;
}

Json ResponsesAnswer::usage() const {
  const RequestUsage& usage = engine_usage();
  int64_t reasoning = 0;
  for (const AnswerItem& item : items()) {
    if (item.kind == Kind::kReasoning) reasoning += std::ssize(tokenizer_->encode(item.text));
  }
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"output_tokens", new_tokens()},
          {"output_tokens_details", {{"reasoning_tokens", std::min(reasoning, new_tokens())}}},
          {"total_tokens", usage.prompt_tokens + new_tokens()}};
}

Json ResponsesAnswer::response_json(const char* status) const {
  const bool running = std::string_view(status) == "in_progress";
  Json json = {{"id", head().id},
               {"object", "response"},
               {"created_at", head().created},
               {"status", status},
               {"background", false},
               {"error", nullptr},
               {"incomplete_details", nullptr},
               {"model", head().model},
               {"output", Json::array()},
               {"parallel_tool_calls", form_.parallel_calls},
               {"service_tier", "default"},
               {"store", form_.store},
               {"temperature", temperature_},
               {"top_p", top_p_},
               {"top_logprobs", 0},
               {"truncation", "disabled"},
               {"usage", nullptr}};
  for (const auto& field : form_.echo.items()) json[field.key()] = field.value();
  if (running) return json;
  for (size_t i = 0; i < items().size(); ++i) json["output"].push_back(item_json(i, false));
  json["usage"] = usage();
  json["replayssm"] = report();
  return json;
}

// The response as it ends, and kept if that was asked for.
Json ResponsesAnswer::finished_json() {
  const bool cut = reason() == FinishReason::kLength;
  Json json = response_json(cut ? "incomplete" : "completed");
  if (cut) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (form_.store) {
    Json messages = form_.messages;
    Warnings ignored;
    append_items(messages, json["output"], ignored, nullptr);
    store_.put(head().id, json, messages);
  }
  return json;
}

Json ResponsesAnswer::whole() { return finished_json(); }

void ResponsesAnswer::send(const char* type, Json fields, std::string* out) {
  Json event = {{"type", type}, {"sequence_number", n_events_++}};
  event.update(fields);
  append_named_event(out, event);
}

void ResponsesAnswer::send_item(const char* type, size_t index, bool part, Json fields,
                                std::string* out) {
  Json place = {{"item_id", item_id(index)}, {"output_index", index}};
  if (part) place["content_index"] = 0;
  place.update(fields);
  send(type, std::move(place), out);
}

void ResponsesAnswer::on_stream_begin(std::string* out) {
  const Json response = response_json("in_progress");
  send("response.created", {{"response", response}}, out);
  send("response.in_progress", {{"response", response}}, out);
}

void ResponsesAnswer::on_item(size_t index, std::string* out) {
  send("response.output_item.added", {{"output_index", index}, {"item", item_json(index, true)}},
       out);
  if (items()[index].kind == Kind::kToolCall) return;
  send_item("response.content_part.added", index, true, {{"part", part_json(index, "")}}, out);
}

void ResponsesAnswer::on_text(size_t index, const std::string& text, std::string* out) {
  if (items()[index].kind == Kind::kReasoning) {
    send_item("response.reasoning_text.delta", index, true, {{"delta", text}}, out);
  } else {
    send_item("response.output_text.delta", index, true,
              {{"delta", text}, {"logprobs", Json::array()}}, out);
  }
}

void ResponsesAnswer::on_item_end(size_t index, std::string* out) {
  const AnswerItem& item = items()[index];
  const Json json = item_json(index, false);
  if (item.kind == Kind::kToolCall && custom(index)) {
    send_item("response.custom_tool_call_input.delta", index, false, {{"delta", json["input"]}},
              out);
    send_item("response.custom_tool_call_input.done", index, false, {{"input", json["input"]}},
              out);
  } else if (item.kind == Kind::kToolCall) {
    const std::string& arguments = item.call.arguments;
    send_item("response.function_call_arguments.delta", index, false, {{"delta", arguments}}, out);
    send_item("response.function_call_arguments.done", index, false,
              {{"name", json["name"]}, {"arguments", arguments}}, out);
  } else {
    if (item.kind == Kind::kReasoning) {
      send_item("response.reasoning_text.done", index, true, {{"text", item.text}}, out);
    } else {
      send_item("response.output_text.done", index, true,
                {{"text", item.text}, {"logprobs", Json::array()}}, out);
    }
    send_item("response.content_part.done", index, true, {{"part", part_json(index, item.text)}},
              out);
  }
  send("response.output_item.done", {{"output_index", index}, {"item", json}}, out);
}

void ResponsesAnswer::on_stream_end(std::string* out) {
  const Json response = finished_json();
  const bool cut = reason() == FinishReason::kLength;
  send(cut ? "response.incomplete" : "response.completed", {{"response", response}}, out);
}

void ResponsesAnswer::on_stream_error(const ApiError& error, std::string* out) {
  Json response = response_json("failed");
  response["error"] = {{"code", "server_error"}, {"message", error.what()}};
  send("response.failed", {{"response", response}}, out);
}

}  // namespace replayssm::server
