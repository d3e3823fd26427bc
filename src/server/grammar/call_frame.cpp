#include "server/grammar/call_frame.h"

#include "core/error.h"

namespace replayssm::server {

CallFrame call_frame(ToolStyle style, const std::string& name) {
  const std::string object = concat("{\"name\": ", dump_json(name), ", \"arguments\": ");
  switch (style) {
    case ToolStyle::kXml:
      return {concat("<tool_call>\n<function=", name, ">\n"), "\n</function>\n</tool_call>",
              "qwen_xml"};
    case ToolStyle::kInvoke:
      return {concat("<minimax:tool_call>\n<invoke name=", dump_json(name), ">\n"),
              "\n</invoke>\n</minimax:tool_call>", "minimax_xml"};
    case ToolStyle::kList:
      return {"<TOOLCALL>[" + object, "}]</TOOLCALL>"};
    case ToolStyle::kGranite:
      return {"<|tool_call|>[" + object, "}]"};
    case ToolStyle::kLfm2:
      return {"<|tool_call_start|>[" + object, "}]<|tool_call_end|>"};
    case ToolStyle::kKimi:
      return {concat("<|tool_calls_section_begin|><|tool_call_begin|>functions.", name,
                     ":0<|tool_call_argument_begin|>"),
              "<|tool_call_end|><|tool_calls_section_end|>"};
    case ToolStyle::kMiniMax:
      return {"<tool_calls>\n" + object, "}\n</tool_calls>"};
    default:
      return {"<tool_call>\n" + object, "}\n</tool_call>"};
  }
}

}  // namespace replayssm::server
