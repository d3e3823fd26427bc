// Answers made of the marks of calls: taken apart the same however they are cut into pieces.
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "server/chat/message_parser.h"

using namespace replayssm;
using namespace replayssm::server;

namespace {

const Json kTools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters":
  {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}}},
  {"type": "function", "function": {"name": "g"}}])");

constexpr std::array<std::string_view, 64> kPieces = {"\n",
                                                      " ",
                                                      "a",
                                                      "<",
                                                      ">",
                                                      "/",
                                                      "\"",
                                                      "'",
                                                      "{",
                                                      "}",
                                                      "[",
                                                      "]",
                                                      "(",
                                                      ")",
                                                      ",",
                                                      ":",
                                                      "=",
                                                      "\\",
                                                      "1",
                                                      "<think>",
                                                      "</think>",
                                                      "<tool_call>",
                                                      "</tool_call>",
                                                      "<function=",
                                                      "<function=f>",
                                                      "<function=g>",
                                                      "<function=x>",
                                                      "</function>",
                                                      "<parameter=",
                                                      "<parameter=s>",
                                                      "<parameter=n>",
                                                      "<parameter=x>",
                                                      "</parameter>",
                                                      "<TOOLCALL>",
                                                      "</TOOLCALL>",
                                                      "<tool_calls>",
                                                      "</tool_calls>",
                                                      "<minimax:tool_call>",
                                                      "</minimax:tool_call>",
                                                      "<invoke name=\"f\">",
                                                      "</invoke>",
                                                      "<parameter name=\"s\">",
                                                      "<|tool_call|>",
                                                      "<|tool_call_start|>",
                                                      "<|tool_call_end|>",
                                                      "<|tool_calls_section_begin|>",
                                                      "<|tool_calls_section_end|>",
                                                      "<|tool_call_begin|>",
                                                      "<|tool_call_argument_begin|>",
                                                      "functions.f:0",
                                                      "{\"name\": \"f\", \"arguments\": ",
                                                      "{\"name\": \"g\", \"arguments\": {}}",
                                                      "{\"name\"",
                                                      "{\"s\": \"",
                                                      "\"}",
                                                      "f(",
                                                      "s=",
                                                      "True",
                                                      "null",
                                                      "\n\n",
                                                      "\\u00e9",
                                                      "\\ud83d",
                                                      "text",
                                                      "5.0"};

struct Pieces {
  const std::vector<std::string>& text;
  bool opens, bare, cut;
};

std::string parse(const Pieces& pieces) {
  MessageParser::Options options;
  options.reasoning = true;
  options.opens_in_reasoning = pieces.opens;
  options.bare_calls = pieces.bare;
  options.tools = kTools;
  MessageParser parser(options);
  std::string content, reasoning, calls;
  const auto take = [&](const std::vector<MessageDelta>& deltas) {
    for (const auto& delta : deltas) {
      if (delta.kind == MessageDelta::Kind::kContent) content += delta.text;
      if (delta.kind == MessageDelta::Kind::kReasoning) reasoning += delta.text;
      if (delta.kind != MessageDelta::Kind::kToolCall) continue;
      if (!Json::parse(delta.call.arguments).is_object()) std::abort();
      calls += delta.call.name + delta.call.arguments + delta.call.id + '\0';
    }
  };
  for (const std::string& piece : pieces.text) take(parser.push(piece));
  take(parser.finish(pieces.cut));
  return content + '\1' + reasoning + '\1' + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 256) return 0;
  std::string text;
  std::vector<std::string> marks, bytes;
  for (size_t i = 1; i < size; ++i) {
    marks.emplace_back(kPieces[data[i] % kPieces.size()]);
    text += marks.back();
  }
  for (const char c : text) bytes.emplace_back(1, c);
  const bool opens = (data[0] & 1) != 0, bare = (data[0] & 2) != 0, cut = (data[0] & 4) != 0;
  const std::vector<std::string> one = {text};
  const std::string whole = parse({one, opens, bare, cut});
  if (parse({marks, opens, bare, cut}) != whole) std::abort();
  if (parse({bytes, opens, bare, cut}) != whole) std::abort();
  return 0;
}
