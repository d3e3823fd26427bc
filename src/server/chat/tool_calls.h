// Tool calls as models write them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace replayssm::server {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

// What stands between the marks of a call, in any of the forms of ToolStyle. None if it is
// malformed or names a function that is not among `tools` (OpenAI's list).
std::optional<std::vector<ToolCall>> parse_tool_calls(std::string_view body, const Json& tools);

}  // namespace replayssm::server
