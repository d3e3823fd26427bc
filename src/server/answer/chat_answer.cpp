#include "server/answer/chat_answer.h"

#include "server/answer/completion_answer.h"

namespace replayssm::server {

MessageParser::Options parser_options(const ChatRequest& request, const ServedModel& model) {
  MessageParser::Options options;
  options.reasoning = model.chat_template->knows_reasoning();
  options.opens_in_reasoning = request.opens_reasoning;
  options.tools = request.tools;
  // With a form of the answer JSON is the form's, and a call has its marks.
  options.bare_calls = request.common.structure.kind == Structure::Kind::kNone;
  return options;
}

ChatAnswer::ChatAnswer(AnswerHead head, Source source, Hooks hooks, const ChatRequest& request,
                       const ServedModel& model)
    : ChoicesAnswer(std::move(head), {std::move(source)}, std::move(hooks)),
      tokenizer_(model.tokenizer),
      logprobs_(request.logprobs),
      parallel_calls_(request.parallel_calls),
      prompt_logprobs_(request.common.engine.prompt_logprobs >= 0) {
  const MessageParser::Options options = parser_options(request, model);
  for (int32_t i = 0; i < request.common.engine.n; ++i) {
    choices_.emplace_back(MessageParser(options));
  }
}

void ChatAnswer::on_prompt(size_t, const std::vector<TokenLogprob>& logprobs, std::string*) {
  prompt_records_ = logprobs;
}

Json ChatAnswer::logprob_json(const TokenRecord& record) const {
  const auto entry = [&](int32_t token, double logprob) {
    Json bytes = Json::array();
    for (const char c : tokenizer_->token_bytes(token)) bytes.push_back(static_cast<uint8_t>(c));
    return Json{{"token", token_text(*tokenizer_, token)},
                {"logprob", logprob_number(logprob)},
                {"bytes", std::move(bytes)}};
  };
  Json out = entry(record.token, record.logprob ? record.logprob->logprob : 0);
  out["top_logprobs"] = Json::array();
  if (record.logprob) {
    for (const auto& [token, logprob] : record.logprob->top) {
      out["top_logprobs"].push_back(entry(token, logprob));
    }
  }
  return out;
}

Json ChatAnswer::call_json(const ToolCall& call, int64_t number, int32_t index) const {
  const std::string id =
      concat("call_", head().id.substr(head().id.find('-') + 1), "_", index, "_", number);
  return {{"id", call.id.empty() ? id : call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

void ChatAnswer::send(int32_t index, Json delta, const char* finish, bool from_draft,
                      std::string* out) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  Json json = {{"index", index}, {"delta", std::move(delta)}};
  if (logprobs_ && !choice.logprobs.empty()) {
    json["logprobs"] = {{"content", std::exchange(choice.logprobs, Json::array())}};
  } else {
    json["logprobs"] = nullptr;
  }
  json["finish_reason"] = finish == nullptr ? Json() : Json(finish);
  if (from_draft) json["from_draft"] = true;
  if (finish != nullptr && prompt_logprobs_ && index == 0) {
    json["prompt_logprobs"] = prompt_logprobs_json(*tokenizer_, prompt_records_);
  }
  append_chunk(out, std::move(json));
}

void ChatAnswer::begin(int32_t index, std::string* out) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (choice.begun) return;
  choice.begun = true;
  if (head().stream) {
    append_chunk(out, {{"index", index},
                       {"delta", {{"role", "assistant"}, {"content", ""}}},
                       {"logprobs", nullptr},
                       {"finish_reason", nullptr}});
  }
}

void ChatAnswer::take(int32_t index, std::vector<MessageDelta> deltas, bool from_draft,
                      std::string* out) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  for (MessageDelta& delta : deltas) {
    if (choice.n_calls > 0 && !parallel_calls_) return;
    Json json;
    if (delta.kind == MessageDelta::Kind::kReasoning) {
      choice.reasoning += delta.text;
      json = {{"reasoning_content", std::move(delta.text)}};
    } else if (delta.kind == MessageDelta::Kind::kContent) {
      choice.content += delta.text;
      json = {{"content", std::move(delta.text)}};
    } else {
      Json call = call_json(delta.call, choice.n_calls, index);
      choice.calls.push_back(call);
      call["index"] = choice.n_calls++;
      json = {{"tool_calls", Json::array({std::move(call)})}};
    }
    if (head().stream) send(index, std::move(json), nullptr, from_draft, out);
  }
}

void ChatAnswer::on_piece(size_t, const TextPiece& piece, std::string* out) {
  begin(piece.choice, out);
  Choice& choice = choices_[static_cast<size_t>(piece.choice)];
  if (logprobs_) {
    for (const TokenRecord& record : piece.tokens) choice.logprobs.push_back(logprob_json(record));
  }
  take(piece.choice, choice.parser.push(piece.text), piece.from_draft, out);
}

void ChatAnswer::on_end(size_t, const ChoiceEnd& end, std::string* out) {
  begin(end.choice, out);
  Choice& choice = choices_[static_cast<size_t>(end.choice)];
  take(end.choice, choice.parser.finish(end.cut()), false, out);
  choice.finish = finish_reason(end.reason);
  if (choice.n_calls > 0 && end.reason != FinishReason::kLength) choice.finish = "tool_calls";
  if (head().stream) send(end.choice, Json::object(), choice.finish, false, out);
}

Json ChatAnswer::choices() {
  Json out = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    Json message = {{"role", "assistant"}};
    const bool no_content = choice.content.empty() && choice.n_calls > 0;
    message["content"] = no_content ? Json() : Json(choice.content);
    message["refusal"] = nullptr;
    if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
    if (choice.n_calls > 0) message["tool_calls"] = choice.calls;
    Json json = {{"index", i}, {"message", std::move(message)}};
    json["logprobs"] = logprobs_ ? Json{{"content", choice.logprobs}} : Json();
    json["finish_reason"] = choice.finish == nullptr ? Json() : Json(choice.finish);
    if (prompt_logprobs_ && i == 0) {
      json["prompt_logprobs"] = prompt_logprobs_json(*tokenizer_, prompt_records_);
    }
    out.push_back(std::move(json));
  }
  return out;
}

}  // namespace replayssm::server
