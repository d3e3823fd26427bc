#include "server/answer/completion_answer.h"

#include <algorithm>
#include <cmath>

#include "core/utf8.h"

namespace replayssm::server {

std::string token_text(const model::Tokenizer& tokenizer, int32_t id) {
  return to_valid_utf8(tokenizer.token_bytes(id));
}

Json logprob_number(double logprob) {
  if (std::isnan(logprob)) return nullptr;
  return std::max(logprob, -9999.0);
}

Json prompt_logprobs_json(const model::Tokenizer& tokenizer,
                          const std::vector<TokenLogprob>& records) {
  Json out = Json::array({nullptr});
  for (const TokenLogprob& record : records) {
    Json entry = Json::object();
    const auto add = [&](int32_t token, double logprob) {
      entry[std::to_string(token)] = {{"logprob", logprob_number(logprob)},
                                      {"decoded_token", token_text(tokenizer, token)}};
    };
    add(record.token, record.logprob);
    for (const auto& [token, logprob] : record.top) add(token, logprob);
    out.push_back(std::move(entry));
  }
  return out;
}

CompletionAnswer::CompletionAnswer(AnswerHead head, std::vector<Source> sources, Hooks hooks,
                                   const CompletionRequest& request,
                                   std::shared_ptr<const model::Tokenizer> tokenizer)
    : ChoicesAnswer(std::move(head), std::move(sources), std::move(hooks)),
      tokenizer_(std::move(tokenizer)),
      prompts_(request.prompts),
      n_(request.common.engine.n),
      echo_(request.echo),
      prompt_logprobs_(request.common.engine.prompt_logprobs >= 0 &&
                       !(request.echo && request.logprobs >= 0)),
      logprobs_(request.logprobs >= 0),
      prompt_records_(prompts_.size()),
      choices_(prompts_.size() * static_cast<size_t>(n_)) {
  for (const auto& prompt : prompts_) {
    prompt_texts_.push_back(echo_ ? to_valid_utf8(tokenizer_->decode(prompt)) : "");
  }
}

int64_t CompletionAnswer::index_of(size_t prompt, int32_t choice) const {
  return static_cast<int64_t>(prompt) * n_ + choice;
}

void CompletionAnswer::on_prompt(size_t prompt, const std::vector<TokenLogprob>& logprobs,
                                 std::string*) {
  prompt_records_[prompt] = logprobs;
}

// `shift`: code points before the generated text.
Json CompletionAnswer::logprobs_of(const std::vector<TokenRecord>& tokens, int64_t shift) const {
  Json out = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  for (const TokenRecord& record : tokens) {
    out["tokens"].push_back(token_text(*tokenizer_, record.token));
    out["text_offset"].push_back(record.offset + shift);
    if (!record.logprob) {
      out["token_logprobs"].push_back(nullptr);
      out["top_logprobs"].push_back(nullptr);
      continue;
    }
    out["token_logprobs"].push_back(logprob_number(record.logprob->logprob));
    Json top = Json::object();
    for (const auto& [token, logprob] : record.logprob->top) {
      // The drawn token has its text for a key; others of the same text have their ids.
      std::string key = token_text(*tokenizer_, token);
      const bool taken = token != record.token &&
                         (top.contains(key) || key == token_text(*tokenizer_, record.token));
      if (taken) key = concat("token_id:", token);
      top[key] = logprob_number(logprob);
    }
    out["top_logprobs"].push_back(std::move(top));
  }
  return out;
}

Json CompletionAnswer::choice_json(int64_t index, const std::string& text, Json logprobs,
                                   const char* finish) const {
  return {{"index", index},
          {"text", text},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", finish == nullptr ? Json() : Json(finish)}};
}

// The prompt, once, before the choice's first text; its logprobs in the prompt's first choice
// alone.
void CompletionAnswer::echo(size_t prompt, int32_t index, std::string* out) {
  Choice& choice = choices_[static_cast<size_t>(index_of(prompt, index))];
  if (!echo_ || choice.echoed) return;
  choice.echoed = true;
  Json logprobs;
  if (logprobs_ && index == 0) {
    std::vector<TokenRecord> records;
    int64_t offset = 0;
    Utf8Stream utf8;
    // Of all tokens but the first, a session's before the prompt included.
    const auto& known = prompt_records_[prompt];
    const size_t n_tokens = prompts_[prompt].size();
    for (size_t i = 0; i < n_tokens; ++i) {
      records.push_back({prompts_[prompt][i], offset, {}});
      const size_t from_end = n_tokens - i;
      if (from_end <= known.size()) records.back().logprob = known[known.size() - from_end];
      offset += count_code_points(utf8.push(tokenizer_->token_bytes(prompts_[prompt][i])));
    }
    logprobs = logprobs_of(records, 0);
  }
  choice.text = prompt_texts_[prompt];
  choice.logprobs = logprobs;
  if (head().stream) {
    append_chunk(out,
                 choice_json(index_of(prompt, index), choice.text, std::move(logprobs), nullptr));
  }
}

void CompletionAnswer::on_piece(size_t prompt, const TextPiece& piece, std::string* out) {
  echo(prompt, piece.choice, out);
  const int64_t index = index_of(prompt, piece.choice);
  Choice& choice = choices_[static_cast<size_t>(index)];
  Json logprobs;
  if (logprobs_) logprobs = logprobs_of(piece.tokens, count_code_points(prompt_texts_[prompt]));
  if (head().stream) {
    Json json = choice_json(index, piece.text, std::move(logprobs), nullptr);
    if (piece.from_draft) json["from_draft"] = true;
    append_chunk(out, std::move(json));
    return;
  }
  choice.text += piece.text;
  if (!logprobs_) return;
  if (choice.logprobs.is_null()) {
    choice.logprobs = std::move(logprobs);
    return;
  }
  for (const auto& item : logprobs.items()) {
    for (auto& value : item.value()) choice.logprobs[item.key()].push_back(std::move(value));
  }
}

void CompletionAnswer::on_end(size_t prompt, const ChoiceEnd& end, std::string* out) {
  echo(prompt, end.choice, out);
  const int64_t index = index_of(prompt, end.choice);
  choices_[static_cast<size_t>(index)].finish = finish_reason(end.reason);
  if (!head().stream) return;
  Json json = choice_json(index, "", nullptr, finish_reason(end.reason));
  if (prompt_logprobs_ && end.choice == 0) {
    json["prompt_logprobs"] = prompt_logprobs_json(*tokenizer_, prompt_records_[prompt]);
  }
  append_chunk(out, std::move(json));
}

Json CompletionAnswer::choices() {
  Json out = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    if (logprobs_ && choice.logprobs.is_null()) choice.logprobs = logprobs_of({}, 0);
    Json json = choice_json(static_cast<int64_t>(i), choice.text, choice.logprobs, choice.finish);
    if (prompt_logprobs_ && i % static_cast<size_t>(n_) == 0) {
      json["prompt_logprobs"] =
          prompt_logprobs_json(*tokenizer_, prompt_records_[i / static_cast<size_t>(n_)]);
    }
    out.push_back(std::move(json));
  }
  return out;
}

}  // namespace replayssm::server
