// The answer to POST /v1/messages.
#pragma once

#include "server/apis/item_answer.h"

namespace replayssm::server {

class MessagesAnswer final : public ItemAnswer {
 public:
  MessagesAnswer(AnswerHead head, Source source, Hooks hooks, const ChatRequest& request,
                 const ServedModel& model, bool parallel_calls);

 private:
  void on_stream_begin(std::string* out) override;
  void on_item(size_t index, std::string* out) override;
  void on_text(size_t index, const std::string& text, std::string* out) override;
  void on_item_end(size_t index, std::string* out) override;
  void on_stream_end(std::string* out) override;
  HttpResponse error_response(const ApiError& error) const override;
  void on_stream_error(const ApiError& error, std::string* out) override;
  Json whole() override;

  Json block_json(size_t index) const;
  Json message_json() const;
  const char* stop_reason() const;
  Json usage(int64_t input, int64_t cached) const;
  void send_delta(size_t index, Json delta, std::string* out) const;

  const int64_t n_prompt_;
};

}  // namespace replayssm::server
