// Answers in the form of items: reasoning, texts and tool calls in the order in which they come.
#pragma once

#include "server/answer/answer.h"
#include "server/chat/message_parser.h"
#include "server/request/chat.h"

namespace replayssm::server {

struct AnswerItem {
  MessageDelta::Kind kind = MessageDelta::Kind::kContent;
  std::string text;  // of the first two kinds
  ToolCall call;
};

class ItemAnswer : public EngineAnswer {
 public:
  // `parallel_calls` false: the answer ends behind its first call, whatever the model says next.
  ItemAnswer(AnswerHead head, Source source, Hooks hooks, const ChatRequest& request,
             const ServedModel& model, bool parallel_calls);

 protected:
  // Of a stream: an item begins, grows and ends. A call comes whole with its beginning.
  virtual void on_item(size_t index, std::string* out) = 0;
  virtual void on_text(size_t index, const std::string& text, std::string* out) = 0;
  virtual void on_item_end(size_t index, std::string* out) = 0;

  const std::vector<AnswerItem>& items() const { return items_; }
  int64_t n_calls() const { return n_calls_; }
  FinishReason reason() const { return reason_; }
  const std::string& stop() const { return stop_; }

 private:
  void on_prompt(size_t, const std::vector<TokenLogprob>&, std::string*) final {}
  void on_piece(size_t prompt, const TextPiece& piece, std::string* out) final;
  void on_end(size_t prompt, const ChoiceEnd& end, std::string* out) final;
  void take(const std::vector<MessageDelta>& deltas, std::string* out);
  void close(std::string* out);

  MessageParser parser_;
  const bool parallel_calls_;
  std::vector<AnswerItem> items_;
  bool open_ = false;  // the last item
  int64_t n_calls_ = 0;
  FinishReason reason_ = FinishReason::kError;
  std::string stop_;
};

// An event with a name, which stands in its "type" too.
void append_named_event(std::string* out, const Json& data);

}  // namespace replayssm::server
