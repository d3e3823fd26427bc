// Structured output: what a grammar lets through, and which schemas are refused by name.
#include "server/grammar/grammar.h"

#include <gtest/gtest.h>

#include "core/utf8.h"
#include "server/api_error.h"
#include "server/chat/tool_calls.h"

namespace replayssm::server {
namespace {

const ServedModel& served() {
  static const ServedModel kModel =
      load_served_model(REPLAYSSM_SOURCE_DIR "/models/demo-gdn", "", 4096, 4096, {4082});
  return kModel;
}

GrammarCompiler& grammars() {
  static GrammarCompiler compiler(served());
  return compiler;
}

bool allows(TokenConstraint& constraint, int32_t id) {
  std::vector<uint8_t> allowed(4096);
  constraint.allowed(allowed);
  return allowed[static_cast<size_t>(id)] != 0;
}

// Whether the text, as the tokenizer cuts it and byte for byte, is let through to its end and may
// end there.
bool accepts(const ConstraintPtr& grammar, const std::string& text) {
  const auto walk = [&](const std::vector<int32_t>& ids) {
    const auto constraint = grammar->clone();
    for (const int32_t id : ids) {
      const bool allowed = allows(*constraint, id);
      EXPECT_EQ(constraint->clone()->accept(id), allowed) << text;
      if (!allowed) return false;
      constraint->accept(id);
    }
    return allows(*constraint, 4082);
  };
  const bool whole = walk(served().tokenizer->encode(text));
  if (!is_ascii(text)) return whole;
  std::vector<int32_t> bytes;
  for (const char c : text) {
    const auto ids = served().tokenizer->encode(std::string(1, c));
    bytes.insert(bytes.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(walk(bytes), whole) << text;
  return whole;
}

ConstraintPtr schema(const std::string& text) {
  Warnings warnings;
  return grammars().structured({Structure::Kind::kSchema, "schema", Json::parse(text)}, warnings);
}

ConstraintPtr made(Structure::Kind kind, Json value) {
  Warnings warnings;
  return grammars().structured({kind, "field", std::move(value)}, warnings);
}

TEST(Grammar, JsonObject) {
  const ConstraintPtr grammar = made(Structure::Kind::kJsonObject, {});
  for (const char* text : {"{}", R"({"a": [1, -2.5e3, null, true, "x\n"], "b": {"c": {}}})"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text : {"[]", "1", R"({"a": })", R"({"a": 1)", "{} x", "{'a': 1}", ""}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(Grammar, Schema) {
  const ConstraintPtr grammar = schema(R"({
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 3},
                   "age": {"type": "integer", "minimum": 0, "maximum": 120},
                   "kind": {"enum": ["a", "b", 3]},
                   "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
                   "child": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["name", "age"], "additionalProperties": false})");
  for (const char* text :
       {R"({"name": "Bo", "age": 7})",
        R"({"name": "Bo", "age": 120, "kind": 3, "tags": ["x", "y"]})",
        R"({"name": "x", "age": 0, "child": {"name": "y", "age": 1}})",
        R"({"name": "x", "age": 0, "child": null})", "{\n  \"name\": \"x\",\n  \"age\": 0\n}"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text : {R"({"name": "Bo"})", R"({"age": 7})", R"({"name": "", "age": 7})",
                           R"({"name": "four", "age": 7})", R"({"name": "Bo", "age": 121})",
                           R"({"name": "Bo", "age": 1.5})", R"({"name": "Bo", "age": 7, "x": 1})",
                           R"({"name": "Bo", "age": 7, "kind": "c"})",
                           R"({"name": "Bo", "age": 7, "tags": ["x", "y", "z"]})"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

// To the letter, also where the library looks away.
TEST(Grammar, WhatStandsBesideIsEnforced) {
  EXPECT_TRUE(
      accepts(schema(R"({"type": ["integer", "null"], "enum": [2, "a", 2.5, null]})"), "2"));
  for (const char* text : {"\"a\"", "2.5"}) {
    EXPECT_FALSE(
        accepts(schema(R"({"type": ["integer", "null"], "enum": [2, "a", 2.5, null]})"), text));
  }
  const auto listed = schema(R"({"type": "object", "properties": {"a": {"type": "null"}},
      "required": ["b"], "additionalProperties": {"type": "boolean"}})");
  EXPECT_TRUE(accepts(listed, R"({"b": true})"));
  EXPECT_TRUE(accepts(listed, R"({"a": null, "b": true, "c": false})"));
  for (const char* text : {"{}", R"({"a": null})", R"({"a": null, "c": true})", R"({"b": 1})"}) {
    EXPECT_FALSE(accepts(listed, text)) << text;
  }
  EXPECT_TRUE(accepts(schema(R"({"type": "object", "required": ["b"]})"), R"({"b": 1})"));
  EXPECT_FALSE(accepts(schema(R"({"type": "object", "required": ["b"]})"), "{}"));
}

TEST(Grammar, Patterns) {
  const struct {
    const char* pattern;
    std::vector<const char*> good, bad;
  } kCases[] = {
      {"^a+b?$", {"a", "aab"}, {"", "b", "abb", "aba"}},
      {"^a|^b$|c$", {"a", "b", "c"}, {"ab", "d"}},
      {"(^x)y(z$)", {"xyz"}, {"xy"}},
      {"^[a-c_^-]{2,3}$", {"a^", "-_c"}, {"a", "abca", "ad"}},
      {"^[\\^-a][^-]$", {"^^", "`a"}, {"b^", "]^"}},
      {"^[^a]$", {"b", "\xC3\xA9", "\xF0\x9F\x98\x80", " "}, {"a", "\\\"", "\\n", "\n", "bb"}},
      {"^.{2}$", {"ab", "\xE2\x98\x83x"}, {"\xE2\x80\xA8x", "a", "a\\\""}},
      {"^\\d\\D\\w\\W\\s\\S$", {"1a_- x"}, {"1a_-xx", "11_- x"}},
      {"^\\x41\\u00e9\\u{1F600}\\uD83D\\uDE00$",
       {"A\xC3\xA9\xF0\x9F\x98\x80\xF0\x9F\x98\x80"},
       {"A"}},
      {"^(?:a|(?<name>bc)|)(d*?)$", {"", "a", "bcdd"}, {"ab", "b"}},
      {"^[\xC3\xA0-\xC3\xBF]\\.\\/\\-$", {"\xC3\xA9./-"}, {"e./-", "\xC3\xA9x/-"}},
      {"^([a-z]{1,5}-){0,9}!$", {"!", "abc-!", "a-b-!"}, {"abc!", "A-!", "-!"}},
      {"^([a-f]{3}|b{2}){2}$", {"bbbb", "abcbb"}, {"bb", "bbb"}},
      {"^(\\d{1,3}\\.){3}\\d{1,3}$", {"1.22.333.4"}, {"1.22.4", "1.2.3333.4"}},
      {"", {""}, {"a"}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.pattern);
    const auto grammar = schema(Json{{"type", "string"}, {"pattern", c.pattern}}.dump());
    for (const std::string text : c.good) EXPECT_TRUE(accepts(grammar, '"' + text + '"')) << text;
    for (const std::string text : c.bad) EXPECT_FALSE(accepts(grammar, '"' + text + '"')) << text;
  }
}

TEST(Grammar, FormatsAreTakenStrictly) {
  const struct {
    const char* format;
    std::vector<const char*> good, bad;
  } kCases[] = {
      {"date",
       {"2026-11-30", "2024-02-28"},
       {"2026-09-31", "2026-02-30", "2026-13-01", "26-01-01"}},
      {"time", {"23:59:59Z", "00:00:00.25+01:30"}, {"24:00:00Z", "12:00:00", "12:60:00Z"}},
      {"date-time", {"2026-11-30T10:00:00Z"}, {"2026-11-31T10:00:00Z", "2026-11-30"}},
      {"ipv4", {"0.10.200.255"}, {"1.2.3", "256.1.1.1", "022.1.1.1", "1.2.3.4.5"}},
      {"uuid", {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567"}},
  };
  for (const auto& c : kCases) {
    const auto grammar = schema(Json{{"type", "string"}, {"format", c.format}}.dump());
    for (const std::string text : c.good) EXPECT_TRUE(accepts(grammar, '"' + text + '"')) << text;
    for (const std::string text : c.bad) EXPECT_FALSE(accepts(grammar, '"' + text + '"')) << text;
  }
}

TEST(Grammar, ControlCharactersAreEscaped) {
  for (const char* text :
       {R"({"type": "string", "minLength": 1, "maxLength": 9})", R"({"type": "string"})",
        R"({"type": "string", "pattern": "^[^a]+$"})"}) {
    const auto constraint = schema(text)->clone();
    ASSERT_TRUE(constraint->accept(served().tokenizer->encode("\"")[0]));
    for (int32_t id = 0; id < 4080; ++id) {
      const auto bytes = served().tokenizer->token_bytes(id);
      const bool control =
          std::any_of(bytes.begin(), bytes.end(), [](unsigned char c) { return c < ' '; });
      EXPECT_FALSE(control && allows(*constraint, id)) << text << " " << id;
    }
  }
}

TEST(Grammar, RefusalsNameNoFileOfTheBuild) {
  try {
    schema(R"({"type": "integer", "minimum": 5, "maximum": 4})");
    ADD_FAILURE() << "not refused";
  } catch (const ApiError& e) {
    EXPECT_EQ(std::string(e.what()).find("xgrammar"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("the minimum is above the maximum"), std::string::npos);
  }
}

TEST(Grammar, SpecialTokensAreNotText) {
  const auto constraint = schema(R"({"type": "string"})")->clone();
  ASSERT_TRUE(constraint->accept(served().tokenizer->encode("\"")[0]));
  EXPECT_FALSE(allows(*constraint, 4080));
  EXPECT_FALSE(allows(*constraint, 4081));
  EXPECT_FALSE(allows(*constraint, 4082));
  EXPECT_FALSE(constraint->accept(4081));
}

// Verification walks a copy: the original stays where it was.
TEST(Grammar, ClonesAreApart) {
  const auto constraint = schema(R"({"enum": ["one", "two"]})")->clone();
  const auto quote = served().tokenizer->encode("\"")[0];
  ASSERT_TRUE(constraint->accept(quote));
  const auto copy = constraint->clone();
  const auto t = served().tokenizer->encode("t")[0];
  const auto o = served().tokenizer->encode("o")[0];
  ASSERT_TRUE(copy->accept(t));
  EXPECT_FALSE(copy->accept(o));
  EXPECT_TRUE(constraint->accept(o));
}

TEST(Grammar, ToolCalls) {
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}},
                   "required": ["x"]}}},
    {"type": "function", "function": {"name": "g"}}])");
  Warnings warnings;
  const auto json = grammars().tool_call(tools, ToolStyle::kJson, warnings);
  EXPECT_TRUE(
      accepts(json, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"));
  EXPECT_TRUE(accepts(json, "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(accepts(json, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(accepts(json, "no"));
  const auto xml = grammars().tool_call(tools, ToolStyle::kXml, warnings);
  EXPECT_TRUE(accepts(xml,
                      "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n"
                      "</tool_call>"));
  EXPECT_FALSE(accepts(xml, "<tool_call>\n<function=h>\n</function>\n</tool_call>"));
}

// A model that has begun to write blanks comes to an end of them, in a call too.
TEST(Grammar, BlanksEnd) {
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}},
                   "required": ["x"]}}}])");
  Warnings warnings;
  const auto object = schema(R"({"type": "object", "properties": {"x": {"type": "integer"}},
                                 "required": ["x"]})");
  const auto json = grammars().tool_call(tools, ToolStyle::kJson, warnings);
  const auto xml = grammars().tool_call(tools, ToolStyle::kXml, warnings);
  for (const size_t n : {0, 1, 20, 21, 500}) {
    const std::string blanks(n, ' ');
    const std::string value = "{\"x\":" + blanks + "1}";
    EXPECT_EQ(accepts(object, value), n <= 20) << n;
    EXPECT_EQ(
        accepts(json, "<tool_call>\n{\"name\": \"f\", \"arguments\": " + value + "}\n</tool_call>"),
        n <= 20)
        << n;
    EXPECT_EQ(accepts(xml, "<tool_call>\n<function=f>\n<parameter=x>" + blanks +
                               "1</parameter>\n</function>\n</tool_call>"),
              n <= 20)
        << n;
  }
}

// Blanks round a bare string are no part of it, so they cannot make up its length.
TEST(Grammar, BareStringsKeepTheirBounds) {
  const auto bounded = [](const char* bounds) {
    Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {
      "type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}}}])");
    tools[0]["function"]["parameters"]["properties"]["x"].update(Json::parse(bounds));
    Warnings warnings;
    return grammars().tool_call(tools, ToolStyle::kXml, warnings);
  };
  const auto takes = [](const ConstraintPtr& grammar, const std::string& text) {
    return accepts(grammar, "<tool_call>\n<function=f>\n<parameter=x>" + text +
                                "</parameter>\n</function>\n</tool_call>");
  };
  const auto three = bounded(R"({"minLength": 1, "maxLength": 3})");
  for (const char* text : {"\na\n", "  abc ", "a b"}) EXPECT_TRUE(takes(three, text)) << text;
  for (const char* text : {"", "  ", "abcd", "a  b", "a<b"})
    EXPECT_FALSE(takes(three, text)) << text;
  EXPECT_TRUE(takes(bounded(R"({"maxLength": 1})"), "\n\n"));
  EXPECT_TRUE(takes(bounded(R"({"maxLength": 1})"), "\na\n"));
  EXPECT_FALSE(takes(bounded(R"({"maxLength": 1})"), "ab"));
  EXPECT_FALSE(takes(bounded(R"({"maxLength": 0})"), "a"));
  EXPECT_FALSE(takes(bounded(R"({"minLength": 3})"), " ab "));
  EXPECT_TRUE(takes(bounded(R"({"minLength": 3})"), "abcdef"));
  const auto long_one = bounded(R"({"minLength": 300, "maxLength": 4000})");
  EXPECT_TRUE(takes(long_one, std::string(300, 'x')));
  EXPECT_FALSE(takes(long_one, std::string(299, 'x')));
}

// What stands beside a length, or behind a reference or an alternative, is kept as well.
TEST(Grammar, BareStringsKeepTheirPatternsAndFormats) {
  const auto call_of = [](const char* parameters) {
    Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
    tools[0]["function"]["parameters"] = Json::parse(parameters);
    Warnings warnings;
    return grammars().tool_call(tools, ToolStyle::kXml, warnings);
  };
  const auto of = [&](const std::string& schema) {
    return call_of(
        ("{\"type\": \"object\", \"properties\": {\"x\": " + schema + "}, \"required\": [\"x\"]}")
            .c_str());
  };
  const auto takes = [](const ConstraintPtr& grammar, const std::string& text) {
    return accepts(grammar, "<tool_call>\n<function=f>\n<parameter=x>\n" + text +
                                "\n</parameter>\n</function>\n</tool_call>");
  };
  struct Case {
    const char* schema;
    std::vector<const char*> good, bad;
  };
  const std::vector<Case> cases = {
      {R"({"type": "string", "pattern": "^.{3}$"})", {"a b", "\"\\x"}, {"a", "ab", " ab ", "a<b"}},
      {R"({"type": "string", "pattern": "^[a ]+$", "minLength": 2, "maxLength": 3})",
       {"aa", "a a"},
       {"a", "a ", "aaaa", "a  a"}},
      {R"({"type": "string", "pattern": "^/.*$"})", {"/", "/a b"}, {"", "a", "/a<b"}},
      {R"({"type": "string", "pattern": "^.*\\.py$"})", {".py", "a b.py"}, {"a", "a.py2"}},
      {R"({"type": "string", "pattern": "^( |a)*b?$"})", {"", "aab", "b"}, {"a a"}},
      {R"({"type": "string", "pattern": "^x* *y*$"})", {"", "xxyy", "y", "x"}, {"y x"}},
      {R"({"type": "string", "format": "time", "maxLength": 9})", {}, {}},
      {R"({"type": "string", "format": "uuid"})",
       {"00000000-0000-0000-0000-00000000000a"},
       {"00000000-0000-0000-0000-00000000000"}},
      {R"({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]})",
       {"ab", "null"},
       {"abc", "a<"}},
      {R"({"enum": ["a b", " a", "<"]})", {"a b", "<"}, {" a", "a"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.schema);
    if (c.good.empty()) {
      EXPECT_THROW(of(c.schema), ApiError);
      continue;
    }
    const auto grammar = of(c.schema);
    for (const char* text : c.good) EXPECT_TRUE(takes(grammar, text)) << text;
    for (const char* text : c.bad) {
      // Blanks at the ends are the frame's: what is left must be good.
      EXPECT_EQ(takes(grammar, text), false) << text;
    }
  }
  const auto referred = call_of(R"({"type": "object", "properties": {"x": {"$ref": "#/$defs/s"},
    "list": {"type": "array", "items": {"$ref": "#/$defs/s"}}},
    "$defs": {"s": {"type": "string", "maxLength": 3}}, "required": ["x"]})");
  EXPECT_TRUE(takes(referred, "abc"));
  EXPECT_FALSE(takes(referred, "abcd"));
  EXPECT_TRUE(takes(referred, "a\n</parameter>\n<parameter=list>\n[\"<a \"]"));
  const auto open = call_of(R"({"type": "object", "properties": {"x": {"type": "integer"}},
    "additionalProperties": {"type": "string"}})");
  EXPECT_TRUE(takes(open, "1"));
  EXPECT_FALSE(takes(open, "a"));
  EXPECT_THROW(call_of(R"({"type": "object", "properties": {"a>": {"type": "null"}}})"), ApiError);
}

TEST(Grammar, HostnamesByTheirRfcs) {
  const auto grammar = schema(R"({"type": "string", "format": "hostname"})");
  const auto takes = [&](const std::string& name) { return accepts(grammar, "\"" + name + "\""); };
  const std::string most(63, 'a');
  for (const std::string& name : {std::string("a"), std::string("a-b.c"), std::string("1.2"),
                                  std::string("a--b"), std::string("ab-c-d"), most}) {
    EXPECT_TRUE(takes(name)) << name;
  }
  // With hyphens at the third and the fourth place it is what IDNA reserves: xn--...
  for (const std::string& name :
       {std::string(), std::string("-a"), std::string("a-"), std::string("a."), std::string("a..b"),
        std::string("a_b"), std::string("ab--c"), std::string("xn--x"), most + "a"}) {
    EXPECT_FALSE(takes(name)) << name;
  }
}

// The cost of some grammars grows with each token: their answers end, no other waits for them.
TEST(Grammar, CostlyGrammarsEnd) {
  std::string chain = "root ::= r0";
  for (int i = 0; i < 30; ++i) chain += concat("\nr", i, " ::= [a-z]* r", i + 1, " [a-z]*");
  chain += "\nr30 ::= \"a\"";
  for (const std::string& text : {chain, std::string("root ::= (([a-z]{0,100}){0,100}){0,100}")}) {
    const auto constraint = made(Structure::Kind::kGrammar, text)->clone();
    const int32_t id = served().tokenizer->encode("a")[0];
    std::vector<uint8_t> allowed(4096);
    std::string ended;
    for (int i = 0; i < 100000 && ended.empty(); ++i) {
      try {
        constraint->allowed(allowed);
        ASSERT_TRUE(constraint->accept(id));
      } catch (const Error& e) {
        ended = e.what();
      }
    }
    EXPECT_EQ(ended, "the grammar takes too long for each token");
  }
}

// Where values have no quotes, a forced call whose value would come out as another is refused.
TEST(Grammar, ForcedValuesThatCannotBeTold) {
  const auto forced = [](const std::string& schema, ToolStyle style) {
    Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {
      "type": "object", "properties": {}, "required": ["x"]}}}])");
    tools[0]["function"]["parameters"]["properties"]["x"] = Json::parse(schema);
    Warnings warnings;
    return grammars().tool_call(tools, style, warnings);
  };
  for (const char* schema :
       {R"({"enum": ["1", 1]})", R"({"enum": ["true", true]})", R"({"const": "a </parameter> b"})",
        R"({"anyOf": [{"type": "string", "pattern": "[a-z]{3}"}, {"type": "integer"}]})"}) {
    SCOPED_TRACE(schema);
    EXPECT_NO_THROW(forced(schema, ToolStyle::kJson));
    try {
      forced(schema, ToolStyle::kXml);
      ADD_FAILURE() << "not refused";
    } catch (const ApiError& e) {
      EXPECT_EQ(e.object().at("param"), "tools[0].function.parameters.properties.x");
    }
  }
  for (const char* schema : {R"({"enum": ["a", 1, null]})", R"({"type": ["string", "null"]})",
                             R"({"type": ["integer", "null"]})", R"({"type": "boolean"})"}) {
    EXPECT_NO_THROW(forced(schema, ToolStyle::kXml)) << schema;
  }
}

// What a forced call may be, in each family's style, is read as a call.
TEST(Grammar, EachStyleIsReadAgain) {
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}},
                   "required": ["x"]}}}])");
  const std::pair<ToolStyle, const char*> kStyles[] = {
      {ToolStyle::kJson, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"},
      {ToolStyle::kList, "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]</TOOLCALL>"},
      {ToolStyle::kGranite, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]"},
      {ToolStyle::kLfm2,
       "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]<|tool_call_end|>"},
      {ToolStyle::kKimi,
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|"
       ">"
       "{\"x\": 1}<|tool_call_end|><|tool_calls_section_end|>"},
      {ToolStyle::kMiniMax,
       "<tool_calls>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_calls>"},
      {ToolStyle::kInvoke,
       "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter "
       "name=\"x\">1</parameter>\n</invoke>\n"
       "</minimax:tool_call>"},
  };
  for (const auto& [style, text] : kStyles) {
    Warnings warnings;
    EXPECT_TRUE(accepts(grammars().tool_call(tools, style, warnings), text)) << text;
    const CallReading reading = read_calls(text, tools, TextEnd::kEnded);
    ASSERT_EQ(reading.calls.size(), 1u) << text;
    EXPECT_EQ(reading.calls[0].arguments, "{\"x\":1}") << text;
  }
}

TEST(Grammar, Choices) {
  const auto grammar = made(Structure::Kind::kChoice, {"yes", "no", "no \"\\ \n\tway", "\xC3\xA9"});
  for (const char* text : {"yes", "no", "no \"\\ \n\tway", "\xC3\xA9"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text : {"", "y", "yes ", "noyes", "\"yes\""}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(Grammar, RegularExpressions) {
  const auto grammar = made(Structure::Kind::kRegex, "(\\d{1,3}\\.)?\"[^\"]*\"\\n?");
  for (const char* text : {"12.\"a\\b\"", "\"\"\n", "\"\t\""})
    EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {"1234.\"\"", "12.", "\"\"\"", "\"a\"\n\n"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
  EXPECT_THROW(made(Structure::Kind::kRegex, "(a)\\1"), ApiError);
  EXPECT_THROW(made(Structure::Kind::kRegex, std::string(2000, 'a')), ApiError);
}

TEST(Grammar, Ebnf) {
  const auto grammar = made(Structure::Kind::kGrammar, R"g(# sums
root ::= term (op term)* end?
term ::= "-"? [0-9]+ ("." [0-9]{1,2})? | "(" root ")"
op   ::= [-+*/]
end  ::= "\n")g");
  for (const char* text : {"1", "-1.25+(2*3)", "((7))\n"})
    EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {"", "1+", "1.234", "--1", "(1", "1\n\n"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(Grammar, RefusesEbnfThatIsNoneOrTooLarge) {
  std::string deep, many, loops;
  for (int i = 0; i < 100; ++i) deep += "(";
  for (int i = 0; i < 20; ++i) many += " \"a\"{100}";
  for (int i = 0; i < 65; ++i) loops += i % 2 == 0 ? " \"a\"*" : " [b]{2,}";
  for (const std::string& text : std::vector<std::string>{
           "", "root ::= ", "root ::= other", "start ::= \"a\"", "root ::= \"a", "root ::= [a",
           "root ::= (\"a\"", "root ::= \"a\"{100000}", "root ::= Regex(\"a\")",
           "root ::= (= \"a\") \"a\"", "root[temperature=0] ::= \"a\"",
           "root ::= TagDispatch((\"a\", b))", "root ::= \"a\"" + many, "root ::= " + deep,
           "root ::=" + loops, "root ::= \"" + std::string(40000, 'a') + "\""}) {
    try {
      made(Structure::Kind::kGrammar, text);
      ADD_FAILURE() << "not refused: " << text.substr(0, 60);
    } catch (const ApiError& e) {
      EXPECT_EQ(e.object().at("param"), "field") << e.what();
    }
  }
}

// A grammar that begins with itself has an end.
TEST(Grammar, EbnfMayBeginWithItself) {
  const auto grammar = made(Structure::Kind::kGrammar, "root ::= root \"b\" | \"a\"");
  EXPECT_TRUE(accepts(grammar, "abb"));
  EXPECT_FALSE(accepts(grammar, "b"));
}

// UTF-8 has no surrogates, though classes of characters span them.
TEST(Grammar, NoSurrogates) {
  const auto id = [](char c) { return served().tokenizer->encode(std::string(1, c))[0]; };
  for (const char* text : {R"({"type": "string", "minLength": 1, "maxLength": 9})",
                           R"({"type": "string"})", R"({"type": "string", "pattern": "^.*$"})"}) {
    const auto constraint = schema(text)->clone();
    ASSERT_TRUE(constraint->accept(id('"')));
    int32_t first = -1;
    for (int32_t token = 0; token < 4080; ++token) {
      if (served().tokenizer->token_bytes(token) == "\xED") first = token;
    }
    ASSERT_GE(first, 0);
    ASSERT_TRUE(constraint->accept(first));
    for (int32_t token = 0; token < 4080; ++token) {
      const auto bytes = served().tokenizer->token_bytes(token);
      const bool surrogate = !bytes.empty() && static_cast<unsigned char>(bytes[0]) >= 0xa0;
      EXPECT_FALSE(surrogate && allows(*constraint, token)) << token;
    }
  }
}

constexpr const char* kOddTools = R"([{"type": "function", "function": {"name": "f",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "odd", "parameters": {"type": "object",
     "properties": {"x": {"not": {}}}}}}])";

// A schema that cannot be enforced blocks no other tool, nor its own call where none is forced.
TEST(Grammar, OneOddToolBlocksNoOther) {
  const Json tools = Json::parse(kOddTools);
  const std::string f =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"q\": \"a\"}}\n</tool_call>";
  const std::string odd =
      "<tool_call>\n{\"name\": \"odd\", \"arguments\": {\"x\": [1]}}\n</tool_call>";
  Warnings warnings;
  const auto forced = grammars().tool_call(tools, ToolStyle::kJson, warnings);
  EXPECT_TRUE(accepts(forced, f));
  EXPECT_FALSE(accepts(forced, odd));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(warnings[0].starts_with("tools[1].function.parameters.properties.x.not: "));
  try {
    grammars().tool_call(Json::array({tools[1]}), ToolStyle::kJson, warnings);
    ADD_FAILURE() << "not refused";
  } catch (const ApiError& e) {
    EXPECT_EQ(e.object().at("param"), "tools[0].function.parameters.properties.x.not");
  }
}

TEST(Grammar, ACallOrTheStructure) {
  const Json tools = Json::parse(kOddTools);
  const Structure structure = {Structure::Kind::kSchema, "response_format.schema",
                               Json::parse(R"({"type": "object", "properties": {
                                   "a": {"type": "string", "maxLength": 5}}, "required": ["a"]})")};
  for (const ToolStyle style : {ToolStyle::kJson, ToolStyle::kXml}) {
    Warnings warnings;
    const auto grammar = grammars().call_or(tools, style, structure, warnings);
    EXPECT_EQ(warnings.size(), 1u);
    EXPECT_TRUE(accepts(grammar, R"({"a": "xyz"})"));
    EXPECT_FALSE(accepts(grammar, R"({"a": "longer"})"));
    EXPECT_FALSE(accepts(grammar, "{}"));
    const auto call = [&](const std::string& name, const std::string& key,
                          const std::string& value) {
      return style == ToolStyle::kXml
                 ? "<tool_call>\n<function=" + name + ">\n<parameter=" + key + ">\n" + value +
                       "\n</parameter>\n</function>\n</tool_call>"
                 : "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": {\"" + key + "\": \"" +
                       value + "\"}}\n</tool_call>";
    };
    EXPECT_TRUE(accepts(grammar, call("f", "q", "text")));
    EXPECT_FALSE(accepts(grammar, call("f", "r", "text")));
    EXPECT_FALSE(accepts(grammar, call("g", "q", "text")));
    EXPECT_TRUE(accepts(grammar, call("odd", "any", "text")));
    EXPECT_FALSE(accepts(grammar, call("f", "q", "text") + R"({"a": "xyz"})"));
  }
}

TEST(Grammar, AfterReasoning) {
  const auto marker = served().tokenizer->id_of("</think>");
  ASSERT_TRUE(marker);
  const auto constraint = after_marker(*marker, schema(R"({"type": "boolean"})"))->clone();
  const auto word = served().tokenizer->encode("anything")[0];
  EXPECT_TRUE(allows(*constraint, word));
  EXPECT_TRUE(constraint->accept(word));
  EXPECT_TRUE(constraint->accept(*marker));
  EXPECT_FALSE(allows(*constraint, word));
  EXPECT_TRUE(constraint->accept(served().tokenizer->encode("t")[0]));
}

}  // namespace
}  // namespace replayssm::server
