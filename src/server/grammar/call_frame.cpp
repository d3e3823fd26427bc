#include "server/grammar/call_frame.h"

#include "core/error.h"

namespace replayssm::server {

CallFrame call_frame(ToolStyle style, const std::string& name) {
  const std::string object = concat("{\"name\": ", dump_json(name), ", \"arguments\": ");
  switch (style) {
    case ToolStyle::kXml:
      return {concat("<tool_call>\n<function=", name, ">\n"), "\n</function>\n</tool_call>",
              "qwen_xml"};
    case ToolStyle::kList:
      return {"<TOOLCALL>[" + object, "}]</TOOLCALL>"};
    default:
      return {"<tool_call>\n" + object, "}\n</tool_call>"};
  }
}

}  // namespace replayssm::server
