#include "server/chat/message_parser.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "server/chat/tool_calls.h"

namespace replayssm::server {
namespace {

Json tools() {
  return Json::parse(R"([
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
      "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "clock"}}])");
}

struct Parsed {
  std::string content, reasoning;
  std::vector<std::string> calls;  // name and arguments
  bool operator==(const Parsed&) const = default;
};

Parsed parse(const std::string& text, size_t n, MessageParser::Options options) {
  MessageParser parser(std::move(options));
  Parsed out;
  const auto take = [&](const std::vector<MessageDelta>& deltas) {
    for (const auto& delta : deltas) {
      if (delta.kind == MessageDelta::Kind::kContent) out.content += delta.text;
      if (delta.kind == MessageDelta::Kind::kReasoning) out.reasoning += delta.text;
      if (delta.kind == MessageDelta::Kind::kToolCall) {
        out.calls.push_back(delta.call.name + delta.call.arguments);
      }
    }
  };
  for (size_t i = 0; i < text.size(); i += n) take(parser.push(text.substr(i, n)));
  take(parser.finish());
  return out;
}

// The same however the text is cut.
void expect_parsed(const std::string& text, const Parsed& expected, bool with_tools = true,
                   bool opens = false) {
  MessageParser::Options options;
  options.reasoning = true;
  options.opens_in_reasoning = opens;
  if (with_tools) options.tools = tools();
  for (size_t n = 1; n <= text.size(); ++n) {
    const Parsed parsed = parse(text, n, options);
    EXPECT_EQ(parsed.content, expected.content) << text << "\nby " << n;
    EXPECT_EQ(parsed.reasoning, expected.reasoning) << text << "\nby " << n;
    EXPECT_EQ(parsed.calls, expected.calls) << text << "\nby " << n;
  }
}

TEST(MessageParser, PlainTextStaysAsItIs) {
  expect_parsed("  two words \n", {"  two words \n", "", {}});
  expect_parsed("a < b <too", {"a < b <too", "", {}});
  expect_parsed("<think", {"<think", "", {}});
}

TEST(MessageParser, Reasoning) {
  expect_parsed("<think>\nhm, so\n</think>\n\nHello", {"Hello", "hm, so", {}});
  expect_parsed("\n<think>a</think>b", {"b", "a", {}});
  expect_parsed("<think>cut of", {"", "cut of", {}});
  expect_parsed("on it\n</think>\nyes", {"yes", "on it", {}}, true, true);
  expect_parsed("<think></think>x", {"x", "", {}});
  // Later on it is text.
  expect_parsed("say <think>no</think>", {"say <think>no</think>", "", {}});
}

TEST(MessageParser, JsonCalls) {
  expect_parsed(
      "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
      "\"Oslo\"}}\n</tool_call>",
      {"I look.", "", {R"(weather{"city":"Oslo"})"}});
  expect_parsed(
      "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"days\\\": 2}\"}</tool_call>\n"
      "<tool_call>{\"name\": \"clock\"}</tool_call>\n",
      {"", "", {R"(weather{"days":2})", "clock{}"}});
  expect_parsed(
      "<TOOLCALL>[{\"name\": \"clock\", \"arguments\": {}}, {\"name\": \"weather\", "
      "\"arguments\": {\"days\": 1}}]</TOOLCALL>",
      {"", "", {"clock{}", R"(weather{"days":1})"}});
  expect_parsed("<think>\nuse it\n</think>\n\n<tool_call>{\"name\": \"clock\"}</tool_call>",
                {"", "use it", {"clock{}"}});
}

TEST(MessageParser, XmlCalls) {
  expect_parsed(
      "<tool_call>\n<function=weather>\n<parameter=city>\n7\n</parameter>\n"
      "<parameter=days>\n7\n</parameter>\n</function>\n</tool_call>",
      {"", "", {R"(weather{"city":"7","days":7})"}});
  expect_parsed(
      "<tool_call>\n<function=weather>\n<parameter=city>\ntwo\nlines\n</parameter>\n"
      "</function>\n</tool_call>",
      {"", "", {R"(weather{"city":"two\nlines"})"}});
}

// What a value is its schema says: blanks are part of a free string alone.
TEST(MessageParser, XmlValuesAreThoseOfTheirSchema) {
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f",
      "parameters": {"type": "object", "properties": {"unit": {"enum": ["1", "k m", 2]},
      "free": {"type": "string"}, "short": {"type": "string", "maxLength": 3}}}}}])");
  const auto value_of = [&](const std::string& key, const std::string& text) {
    const auto calls = parse_tool_calls(
        concat("<function=f>\n<parameter=", key, ">", text, "</parameter>\n</function>"), tools);
    return calls ? calls->at(0).arguments : "no call";
  };
  EXPECT_EQ(value_of("unit", "\n 1\n"), R"({"unit":"1"})");
  EXPECT_EQ(value_of("unit", " k m\n"), R"({"unit":"k m"})");
  EXPECT_EQ(value_of("unit", "\n2 "), R"({"unit":2})");
  EXPECT_EQ(value_of("free", "\n  a \n"), R"({"free":"  a "})");
  EXPECT_EQ(value_of("short", "\n  12 \n"), R"({"short":"12"})");
}

TEST(MessageParser, MalformedCallsAreContent) {
  for (const std::string text :
       {"a <tool_call>{\"name\": \"nobody\"}</tool_call> b", "<tool_call>{broken</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>x\n</function></tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>{\"name\": \"clock\", \"arguments\": 3}</tool_call>",
        "x <tool_call>{\"name\": \"clo", "<tool_call>", "x <tool_call>7</tool_call>\n "}) {
    expect_parsed(text, {text, "", {}});
  }
}

TEST(MessageParser, WithoutToolsCallsAreContent) {
  const std::string text = "<tool_call>{\"name\": \"clock\"}</tool_call>";
  expect_parsed(text, {text, "", {}}, false);
}

// A model that stops before the closing mark has still called.
TEST(MessageParser, UnclosedCallThatIsComplete) {
  expect_parsed("<tool_call>{\"name\": \"clock\", \"arguments\": {}}", {"", "", {"clock{}"}});
}

}  // namespace
}  // namespace replayssm::server
