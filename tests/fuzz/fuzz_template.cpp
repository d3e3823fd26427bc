// Any bytes as a chat template, over fixed messages; and any JSON as the variables of real
// templates. Either a text or an Error, within bounds of time and memory.
#include <string>
#include <vector>

#include "core/text_file.h"
#include "jinja/template.h"

using namespace replayssm;
using namespace replayssm::server;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<jinja::Template> kTemplates = [] {
    std::vector<jinja::Template> out;
    for (const std::string path :
         {"models/demo-gdn/chat_template.jinja", "tests/server/templates/qwen_style.jinja",
          "tests/server/templates/nemotron_style.jinja"}) {
      out.push_back(jinja::Template::parse(read_text_file(REPLAYSSM_SOURCE_DIR "/" + path), path));
    }
    return out;
  }();
  static const Json kContext = Json::parse(R"({"messages": [{"role": "user", "content": "hé"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f",
      "arguments": {"a": [1, 2.5, null, true]}}}]}], "add_generation_prompt": true})");
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if (data[0] % 2 == 0) {
      jinja::Template::parse(text, "fuzz").render(kContext);
    } else {
      Json context = parse_json(text);
      if (context.is_array()) context = Json{{"messages", context}};
      if (context.is_object()) kTemplates[data[0] / 2 % kTemplates.size()].render(context);
    }
  } catch (const Error&) {
  }
  return 0;
}
