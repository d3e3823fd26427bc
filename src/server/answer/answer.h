// Answers made by the engine: what all of them do, whatever their JSON looks like.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "server/answer/generation.h"
#include "server/api_error.h"
#include "server/http/message.h"
#include "server/request/fields.h"

namespace replayssm::server {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

inline constexpr size_t kFinishReasons = static_cast<size_t>(FinishReason::kError) + 1;

// What came of a request, for the log and the metrics.
struct RequestRecord {
  std::string id;      // x-request-id
  std::string answer;  // "cmpl-..."
  std::string path;
  int status = 200;
  bool stream = false;
  bool cancelled = false;  // the client left, for the reason in `error`
  RequestUsage usage;      // summed over the prompts
  int64_t new_tokens = 0;
  std::array<int32_t, kFinishReasons> finished{};  // choices by FinishReason
  Histogram steps;                                 // times between a choice's steps
  Warnings warnings;
  double first_seconds = -1;  // to the first text; -1: there was none
  double seconds = 0;
  std::string error;
};

// One prompt of a request and where its text comes from.
struct Source {
  std::shared_ptr<Generation> generation;
  RequestId engine_id = 0;
};

struct AnswerHead {
  std::string id;          // "cmpl-..."
  std::string request_id;  // x-request-id
  std::string path;
  std::string model;
  int64_t created = 0;  // seconds since 1970
  bool stream = false;
  bool include_usage = false;
  bool drop_text = false;  // max_tokens 0: the engine's one token is not shown
  Warnings warnings;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
};

class EngineAnswer : public Answer {
 public:
  // `cancel` ends a request of the engine; `done` is called once, on any thread. A cancelled
  // request's comes when the engine has let go of it, with its real numbers.
  struct Hooks {
    std::function<void(RequestId)> cancel;
    std::function<void(const RequestRecord&)> done;
  };

  EngineAnswer(AnswerHead head, std::vector<Source> sources, Hooks hooks);
  ~EngineAnswer() override;

  void start(std::function<void(bool done)> wake) override;
  Part take() override;
  bool takes_long() const override;
  void cancel(const std::string& why) override;

 protected:
  // In order for each choice. `out` takes the events of a stream; empty appends otherwise.
  virtual void on_prompt(size_t prompt, const std::vector<TokenLogprob>& logprobs,
                         std::string* out) = 0;
  virtual void on_piece(size_t prompt, const TextPiece& piece, std::string* out) = 0;
  virtual void on_end(size_t prompt, const ChoiceEnd& end, std::string* out) = 0;
  // The events before a stream's first text.
  virtual void on_stream_begin(std::string*) {}
  // At the end, one of these: the body of the whole answer; a stream's last events; the same two
  // where the engine failed.
  virtual Json whole() = 0;
  virtual void on_stream_end(std::string* out) = 0;
  virtual HttpResponse error_response(const ApiError& error) const { return error.response(); }
  virtual void on_stream_error(const ApiError& error, std::string* out) = 0;

  const AnswerHead& head() const { return head_; }
  // Whole at the end only.
  const RequestUsage& engine_usage() const { return record_.usage; }
  int64_t new_tokens() const { return record_.new_tokens; }
  // The "replayssm" of an answer.
  Json report() const;

 private:
  HttpResponse response_head() const;
  void finish(Part& part);
  void record(const std::string& error, int status);

  const AnswerHead head_;
  std::vector<Source> sources_;
  Hooks hooks_;
  bool head_sent_ = false;
  bool ended_ = false;
  size_t n_finished_ = 0;
  std::vector<bool> finished_;
  RequestRecord record_;
  std::string error_;
};

// Answers in OpenAI's older form: a list of choices, chunks of them in a stream.
class ChoicesAnswer : public EngineAnswer {
 public:
  using EngineAnswer::EngineAnswer;

 protected:
  // The "choices" of the whole answer, and its "object".
  virtual Json choices() = 0;
  virtual const char* object(bool chunk) const = 0;
  // {"id", "object", "created", "model", "choices": [choice]} as an event.
  void append_chunk(std::string* out, Json choice) const;

 private:
  Json whole() override;
  void on_stream_end(std::string* out) override;
  void on_stream_error(const ApiError& error, std::string* out) override;
  Json usage() const;
};

// "stop", "length", ...: OpenAI's finish_reason.
const char* finish_reason(FinishReason reason);

// An event of a stream.
void append_event(std::string* out, const Json& data);

int64_t unix_seconds();

}  // namespace replayssm::server
