// The answer to POST /v1/completions.
#pragma once

#include "server/answer/answer.h"
#include "server/request/completion.h"

namespace replayssm::server {

class CompletionAnswer final : public ChoicesAnswer {
 public:
  CompletionAnswer(AnswerHead head, std::vector<Source> sources, Hooks hooks,
                   const CompletionRequest& request,
                   std::shared_ptr<const model::Tokenizer> tokenizer);

 protected:
  void on_prompt(size_t prompt, const std::vector<TokenLogprob>& logprobs,
                 std::string* out) override;
  void on_piece(size_t prompt, const TextPiece& piece, std::string* out) override;
  void on_end(size_t prompt, const ChoiceEnd& end, std::string* out) override;
  Json choices() override;
  const char* object(bool) const override { return "text_completion"; }

 private:
  struct Choice {
    std::string text;
    Json logprobs;
    const char* finish = nullptr;
    bool echoed = false;
  };

  int64_t index_of(size_t prompt, int32_t choice) const;
  void echo(size_t prompt, int32_t choice, std::string* out);
  Json logprobs_of(const std::vector<TokenRecord>& tokens, int64_t shift) const;
  Json choice_json(int64_t index, const std::string& text, Json logprobs, const char* finish) const;

  const std::shared_ptr<const model::Tokenizer> tokenizer_;
  const std::vector<std::vector<int32_t>> prompts_;
  const int32_t n_;
  const bool echo_;
  const bool prompt_logprobs_;  // asked for by that name
  const bool logprobs_;
  std::vector<std::string> prompt_texts_;  // with echo
  std::vector<std::vector<TokenLogprob>> prompt_records_;
  std::vector<Choice> choices_;
};

// The token as a client sees it: its bytes, U+FFFD for what is no character.
std::string token_text(const model::Tokenizer& tokenizer, int32_t id);

// A number that JSON can hold: -inf becomes -9999.
Json logprob_number(double logprob);

// [{"token", "logprob", "rank"...}] as vLLM's prompt_logprobs: null for the first token, then a map
// from id to {"logprob", "decoded_token"}.
Json prompt_logprobs_json(const model::Tokenizer& tokenizer,
                          const std::vector<TokenLogprob>& records);

}  // namespace replayssm::server
