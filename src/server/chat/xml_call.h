// Calls whose arguments stand between marks, one by one and without quotes.
#pragma once

#include <string_view>

#include "server/chat/call_text.h"
#include "server/chat/tool_calls.h"

namespace replayssm::server {

struct XmlMarks {
  std::string_view block, block_end;
  std::string_view function, function_end;  // the first ends before the name, which ends at '>'
  std::string_view parameter, parameter_end;
};

inline constexpr XmlMarks kXmlMarks[] = {
    // Qwen, Nemotron
    {"<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"},
    // MiniMax M2
    {"<minimax:tool_call>", "</minimax:tool_call>", "<invoke name=", "</invoke>",
     "<parameter name=", "</parameter>"},
};

// The functions of one block, or without one; as read_calls(). A mark that is missing is made up
// for; a mark within a value is text. A value ends at its mark if what follows is a mark too. Else
// it ends
// - before another parameter of the function, at a line's start, whose own end another mark
// follows;
// - before the function's end, if behind that the block, the answer or another function begins or
//   ends;
// - where none of these comes, at the first mark that may end it, or with the answer.
// A whole call within a value is part of it.
CallReading read_xml(TextReader text, const XmlMarks& marks, const Json& tools);

}  // namespace replayssm::server
