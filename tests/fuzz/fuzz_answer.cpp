// Any bytes as a model's text: taken apart the same however it is cut into pieces.
#include <cstdlib>
#include <string>

#include "server/answer/stop.h"
#include "server/chat/message_parser.h"

using namespace replayssm;
using namespace replayssm::server;

namespace {

const Json kTools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters":
  {"type": "object", "properties": {"s": {"type": "string"}}}}}])");

std::string parse(const std::string& text, size_t step, bool opens) {
  MessageParser::Options options;
  options.reasoning = true;
  options.opens_in_reasoning = opens;
  options.tools = kTools;
  MessageParser parser(options);
  std::string content, reasoning, calls;
  const auto take = [&](const std::vector<MessageDelta>& deltas) {
    for (const auto& delta : deltas) {
      if (delta.kind == MessageDelta::Kind::kContent) content += delta.text;
      if (delta.kind == MessageDelta::Kind::kReasoning) reasoning += delta.text;
      if (delta.kind == MessageDelta::Kind::kToolCall) {
        calls += delta.call.name + delta.call.arguments + '\0';
      }
    }
  };
  for (size_t i = 0; i < text.size(); i += step) take(parser.push(text.substr(i, step)));
  take(parser.finish());
  return content + '\1' + reasoning + '\1' + calls;
}

std::string stop(const std::string& text, size_t step) {
  StopMatcher matcher({"ab", "aab", "</", "\n\n"});
  std::string out;
  for (size_t i = 0; i < text.size(); i += step) out += matcher.push(text.substr(i, step));
  return out + matcher.finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t step = 1 + data[0] % 16;
  const bool opens = data[1] % 2 == 1;
  const std::string text(reinterpret_cast<const char*>(data + 2), size - 2);
  const size_t whole = text.size() + 1;
  if (parse(text, step, opens) != parse(text, whole, opens)) std::abort();
  if (stop(text, step) != stop(text, whole)) std::abort();
  return 0;
}
