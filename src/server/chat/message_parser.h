// A chat answer's text taken apart as it comes: reasoning, content and tool calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "server/chat/tool_calls.h"

namespace replayssm::server {

// Tokens written so are text to a chat even if the tokenizer calls them special.
const std::vector<std::string>& chat_marks();

struct MessageDelta {
  enum class Kind { kReasoning, kContent, kToolCall } kind;
  std::string text;  // of the first two
  ToolCall call;
};

// The deltas' contents, concatenated, do not depend on how the text is cut into pieces. Blanks
// round the marks go; a malformed call is content, as it was written.
class MessageParser {
 public:
  struct Options {
    bool reasoning = false;           // a leading <think> opens reasoning
    bool opens_in_reasoning = false;  // the prompt has opened it
    Json tools = Json::array();       // empty: calls are content
  };

  explicit MessageParser(Options options);
  std::vector<MessageDelta> push(std::string_view text);
  std::vector<MessageDelta> finish();

 private:
  enum class State { kStart, kReasoning, kAfterReasoning, kContent, kCall };

  bool advance(std::vector<MessageDelta>& out, bool last);
  bool start(bool last);
  bool reasoning(std::vector<MessageDelta>& out, bool last);
  bool content(std::vector<MessageDelta>& out, bool last);
  bool call(std::vector<MessageDelta>& out, bool last);
  void emit(std::vector<MessageDelta>& out, MessageDelta::Kind kind, size_t n);

  const Options options_;
  State state_;
  std::string rest_;         // text not yet decided on
  std::string_view opened_;  // the mark that began the call
  std::string blanks_;       // between the content and that mark
  bool reasoned_ = false;    // some reasoning was handed on
  bool called_ = false;      // a call was
};

}  // namespace replayssm::server
