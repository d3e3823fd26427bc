// What stands round a call's arguments, in each style.
#pragma once

#include <string>

#include "server/chat/chat_template.h"

namespace replayssm::server {

struct CallFrame {
  std::string begin;
  std::string end;
  std::string values = "json";  // how the arguments are written, in the library's words

  // Whether strings stand without quotes.
  bool bare() const { return values != "json"; }
};

CallFrame call_frame(ToolStyle style, const std::string& name);

}  // namespace replayssm::server
