// A chat answer's text taken apart as it comes: reasoning, content and tool calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "server/chat/tool_calls.h"

namespace replayssm::server {

struct MessageDelta {
  enum class Kind { kReasoning, kContent, kToolCall } kind;
  std::string text;  // of the first two
  ToolCall call;
};

// The deltas' contents, concatenated, do not depend on how the text is cut into pieces. Blanks
// round the marks go; a malformed call is content, as it was written. A call in the reasoning is
// one if the answer ends with it, else it is reasoning.
class MessageParser {
 public:
  struct Options {
    bool reasoning = false;           // a leading <think> opens reasoning
    bool opens_in_reasoning = false;  // the prompt has opened it
    Json tools = Json::array();       // empty: calls are content
    bool bare_calls = true;           // JSON without marks may be a call
  };

  explicit MessageParser(Options options);
  std::vector<MessageDelta> push(std::string_view text);
  // `cut`: by max_tokens or a stop string; what was being written is not taken for whole.
  std::vector<MessageDelta> finish(bool cut = false);

 private:
  enum class State { kStart, kReasoning, kAfterReasoning, kContent };

  bool advance(std::vector<MessageDelta>& out, TextEnd end);
  bool start(TextEnd end);
  bool reasoning(std::vector<MessageDelta>& out, TextEnd end);
  bool content(std::vector<MessageDelta>& out, TextEnd end);
  CallReading read_at(size_t at, TextEnd end);
  void end_reasoning(std::vector<MessageDelta>& out, TextEnd end);
  void emit(std::vector<MessageDelta>& out, MessageDelta::Kind kind, size_t n);

  const Options options_;
  State state_;
  std::string rest_;        // text not yet decided on
  size_t read_again_ = 0;   // an open call is read again when it has as many bytes
  size_t searched_ = 0;     // bytes of rest_ in which no </think> begins
  bool reasoned_ = false;   // some reasoning was handed on
  bool line_start_ = true;  // no content was handed on since the last call
  bool called_ = false;     // a call was handed on
};

}  // namespace replayssm::server
