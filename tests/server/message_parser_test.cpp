#include "server/chat/message_parser.h"

#include <gtest/gtest.h>

#include <sstream>

#include "core/error.h"
#include "core/text_file.h"
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

Parsed parse(const std::vector<std::string>& pieces, MessageParser::Options options,
             bool cut = false) {
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
  for (const std::string& piece : pieces) take(parser.push(piece));
  take(parser.finish(cut));
  return out;
}

Parsed parse(const std::string& text, size_t n, MessageParser::Options options) {
  std::vector<std::string> pieces;
  for (size_t i = 0; i < text.size(); i += n) pieces.push_back(text.substr(i, n));
  return parse(pieces, std::move(options));
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

// The lines of a table in tests/server/answers.
std::vector<std::string> lines_of(const std::string& file) {
  std::istringstream in(
      read_text_file(REPLAYSSM_SOURCE_DIR "/tests/server/answers/" + file, size_t{1} << 20));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    constexpr std::string_view kLineFeed = "\u23CE";
    for (size_t at = line.find(kLineFeed); at != std::string::npos;
         at = line.find(kLineFeed, at + 1)) {
      line.replace(at, kLineFeed.size(), "\n");
    }
    lines.push_back(line);
  }
  return lines;
}

struct Answer {
  std::string text;
  bool thinking = false;
  bool cut = false;
  Parsed expected;
};

bool take_prefix(std::string& text, const std::string& prefix) {
  if (!text.starts_with(prefix)) return false;
  text.erase(0, prefix.size());
  if (text.starts_with(' ')) text.erase(0, 1);
  return true;
}

std::vector<Answer> handwritten_answers() {
  std::vector<Answer> answers;
  for (std::string line : lines_of("calls.txt")) {
    if (!line.starts_with("  ")) {
      Answer answer;
      answer.thinking = take_prefix(line, "(thinking)");
      answer.cut = take_prefix(line, "(cut)");
      answer.text = line;
      answers.push_back(answer);
      continue;
    }
    line.erase(0, 2);
    Parsed& expected = answers.back().expected;
    if (line == "stays") {
      expected.content = answers.back().text;
    } else if (line.starts_with("= ")) {
      expected.content = line.substr(2);
    } else if (line.starts_with("? ")) {
      expected.reasoning = line.substr(2);
    } else {
      line.erase(line.find(' '), 1);
      expected.calls.push_back(line);
    }
  }
  return answers;
}

// Handwritten answers in the styles of many models, with marks that are missing or stand in values:
// the same calls however the stream is cut.
TEST(MessageParser, HandwrittenAnswers) {
  const Json tools = Json::parse(
      read_text_file(REPLAYSSM_SOURCE_DIR "/tests/server/answers/tools.json", size_t{1} << 20));
  const auto answers = handwritten_answers();
  EXPECT_GE(answers.size(), 200u);
  for (const Answer& answer : answers) {
    MessageParser::Options options;
    options.reasoning = true;
    options.opens_in_reasoning = answer.thinking;
    options.tools = tools;
    const auto expect = [&](const Parsed& parsed, const std::string& cut) {
      EXPECT_EQ(parsed.content, answer.expected.content) << answer.text << "\n" << cut;
      EXPECT_EQ(parsed.reasoning, answer.expected.reasoning) << answer.text << "\n" << cut;
      EXPECT_EQ(parsed.calls, answer.expected.calls) << answer.text << "\n" << cut;
    };
    expect(parse({answer.text}, options, answer.cut), "whole");
    if (HasFailure()) continue;
    std::vector<std::string> bytes;
    for (const char c : answer.text) bytes.emplace_back(1, c);
    expect(parse(bytes, options, answer.cut), "byte by byte");
    for (size_t i = 1; i < answer.text.size(); ++i) {
      expect(parse({answer.text.substr(0, i), answer.text.substr(i)}, options, answer.cut),
             concat("cut at ", i));
    }
  }
}

// What a value is its schema says.
TEST(MessageParser, HandwrittenValues) {
  Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {
      "type": "object", "properties": {}, "$defs": {"count": {"type": "integer"},
      "text": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}}}])");
  for (const std::string& line : lines_of("values.txt")) {
    const size_t first = line.find(" | "), second = line.rfind(" | ");
    const std::string value = line.substr(second + 3);
    const Json schema = Json::parse(line.substr(0, first));
    tools[0]["function"]["parameters"]["properties"]["x"] = schema;
    const std::string text = line.substr(first + 3, second - first - 3);
    const CallReading reading =
        read_calls(concat("<function=f>\n<parameter=x>\n", text, "\n</parameter>\n</function>"),
                   tools, TextEnd::kEnded);
    ASSERT_EQ(reading.calls.size(), 1u) << line;
    const std::string expected = value == "-" ? "{}" : Json{{"x", Json::parse(value)}}.dump();
    EXPECT_EQ(reading.calls[0].arguments, expected) << line;
  }
}

// A value that is needed is not left out.
TEST(MessageParser, EmptyValueThatIsRequired) {
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {
      "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}])");
  const auto reading =
      read_calls("<function=f><parameter=n></parameter></function>", tools, TextEnd::kEnded);
  ASSERT_EQ(reading.calls.size(), 1u);
  EXPECT_EQ(reading.calls[0].arguments, R"({"n":""})");
}

// With a form of the answer JSON is the form's.
TEST(MessageParser, BareCallsCanBeOff) {
  const std::string text = R"({"name": "clock", "arguments": {}})";
  MessageParser::Options options;
  options.tools = tools();
  EXPECT_EQ(parse({text}, options), (Parsed{"", "", {"clock{}"}}));
  options.bare_calls = false;
  EXPECT_EQ(parse({text}, options), (Parsed{text, "", {}}));
}

// A long answer in small pieces takes time that is about linear in it.
TEST(MessageParser, LongCallInSmallPieces) {
  std::string value;
  while (value.size() < 400000) value += "</function> <parameter=x> { } ";
  MessageParser::Options options;
  options.tools = tools();
  const std::string text = "<tool_call>\n<function=weather>\n<parameter=city>\n" + value +
                           "x\n</parameter>\n</function>";
  std::vector<std::string> pieces;
  for (size_t i = 0; i < text.size(); i += 4) pieces.push_back(text.substr(i, 4));
  const std::vector<std::string> calls = {"weather" + Json{{"city", value + "x"}}.dump()};
  EXPECT_EQ(parse(pieces, options).calls, calls);
}

// Kimi numbers its calls, and its template shows the numbers again.
TEST(MessageParser, NumbersOfCallsStay) {
  const auto reading = read_calls(
      "<|tool_call_begin|>functions.clock:3<|tool_call_argument_begin|>{}<|tool_call_end|>",
      tools(), TextEnd::kEnded);
  ASSERT_EQ(reading.calls.size(), 1u);
  EXPECT_EQ(reading.calls[0].id, "functions.clock:3");
}

TEST(MessageParser, MalformedCallsAreContent) {
  for (const std::string text :
       {"a <tool_call>{\"name\": \"nobody\"}</tool_call> b", "<tool_call>{broken</tool_call>",
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
