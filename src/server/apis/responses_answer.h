// The answer to POST /v1/responses.
#pragma once

#include "server/apis/item_answer.h"
#include "server/apis/response_store.h"
#include "server/apis/responses_request.h"

namespace replayssm::server {

class ResponsesAnswer final : public ItemAnswer {
 public:
  // `store` must outlive it.
  ResponsesAnswer(AnswerHead head, Source source, Hooks hooks, const ChatRequest& request,
                  const ServedModel& model, ResponsesRequest form, ResponseStore& store);

 private:
  void on_stream_begin(std::string* out) override;
  void on_item(size_t index, std::string* out) override;
  void on_text(size_t index, const std::string& text, std::string* out) override;
  void on_item_end(size_t index, std::string* out) override;
  void on_stream_end(std::string* out) override;
  void on_stream_error(const ApiError& error, std::string* out) override;
  Json whole() override;

  // Of a call: the tool that the client knows; null if that is the function itself.
  const ToolOrigin* origin(size_t index) const;
  bool custom(size_t index) const;
  std::string item_id(size_t index) const;
  Json part_json(size_t index, const std::string& text) const;
  // `begun`: as the item begins, without its content.
  Json item_json(size_t index, bool begun) const;
  Json response_json(const char* status) const;
  Json finished_json();
  Json usage() const;
  void send(const char* type, Json fields, std::string* out);
  // An event of the item `index` or of its one content part.
  void send_item(const char* type, size_t index, bool part, Json fields, std::string* out);

  const ResponsesRequest form_;
  const std::shared_ptr<const model::Tokenizer> tokenizer_;
  const double temperature_;
  const double top_p_;
  ResponseStore& store_;
  int64_t n_events_ = 0;
};

}  // namespace replayssm::server
