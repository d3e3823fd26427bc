// The answer to POST /v1/chat/completions.
#pragma once

#include "server/answer/answer.h"
#include "server/chat/message_parser.h"
#include "server/request/chat.h"

namespace replayssm::server {

// How the text of its answer is read.
MessageParser::Options parser_options(const ChatRequest& request, const ServedModel& model);

class ChatAnswer final : public ChoicesAnswer {
 public:
  ChatAnswer(AnswerHead head, Source source, Hooks hooks, const ChatRequest& request,
             const ServedModel& model);

 protected:
  void on_prompt(size_t prompt, const std::vector<TokenLogprob>& logprobs,
                 std::string* out) override;
  void on_piece(size_t prompt, const TextPiece& piece, std::string* out) override;
  void on_end(size_t prompt, const ChoiceEnd& end, std::string* out) override;
  Json choices() override;
  const char* object(bool chunk) const override {
    return chunk ? "chat.completion.chunk" : "chat.completion";
  }

 private:
  struct Choice {
    explicit Choice(MessageParser parser) : parser(std::move(parser)) {}
    MessageParser parser;
    std::string content;
    std::string reasoning;
    Json calls = Json::array();
    Json logprobs = Json::array();  // streaming: those not sent yet
    int64_t n_calls = 0;
    bool begun = false;
    const char* finish = nullptr;
  };

  void begin(int32_t index, std::string* out);
  void take(int32_t index, std::vector<MessageDelta> deltas, bool from_draft, std::string* out);
  void send(int32_t index, Json delta, const char* finish, bool from_draft, std::string* out);
  Json call_json(const ToolCall& call, int64_t number, int32_t index) const;
  Json logprob_json(const TokenRecord& record) const;

  const std::shared_ptr<const model::Tokenizer> tokenizer_;
  const bool logprobs_;
  const bool parallel_calls_;
  const bool prompt_logprobs_;
  std::vector<TokenLogprob> prompt_records_;
  std::vector<Choice> choices_;
};

}  // namespace replayssm::server
