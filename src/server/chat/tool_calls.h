// Tool calls as models write them: in the styles of ToolStyle and of other families, with marks
// that they forget.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "server/chat/loose_value.h"

namespace replayssm::server {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
  std::string id;         // as the model numbered it; mostly empty
};

// The marks that begin calls and end them, thinking's and results': tokens written so are text to a
// chat even if the tokenizer calls them special.
const std::vector<std::string>& chat_marks();

struct CallPlace {
  size_t at = std::string_view::npos;  // where a call may begin; npos: nowhere
  size_t length = 0;                   // of what says so
  size_t partial = 0;  // bytes at the text's end that may be the beginning of a mark
};

// The first place. `bare`: also an object in JSON at a line's start; `line_start`: the text begins
// at one.
CallPlace find_call(std::string_view text, bool bare, bool line_start);

struct CallReading {
  enum class State {
    kOpen,   // more text is needed to tell
    kCalls,  // `calls` take the first `length` bytes
    kNone,   // no call begins here
  };
  State state = State::kNone;
  std::vector<ToolCall> calls;
  size_t length = 0;
};

// The calls of one block, or without marks round them, at the beginning of a text that find_call()
// found. What is known of a text stays so however it goes on. A call names one of `tools` (OpenAI's
// list), and nothing of its arguments is missing: where the text was cut, an open value is no
// value.
CallReading read_calls(std::string_view text, const Json& tools, TextEnd end);

}  // namespace replayssm::server
