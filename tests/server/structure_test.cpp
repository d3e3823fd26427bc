// The fields that say which form an answer has.
#include "server/request/structure.h"

#include <gtest/gtest.h>

#include "server/api_error.h"

namespace replayssm::server {
namespace {

using Kind = Structure::Kind;

Structure parsed(const std::string& text, Warnings& warnings) {
  const Json body = Json::parse(text);
  Fields fields(body, "");
  Structure out = parse_structure(fields, warnings);
  fields.warn_unread(warnings);
  return out;
}

TEST(Structure, EveryFieldThatOtherServersKnowIsServed) {
  const struct {
    const char* body;
    Kind kind;
    const char* field;
    const char* value;
  } kCases[] = {
      {R"({})", Kind::kNone, "", "null"},
      {R"({"response_format": {"type": "text"}})", Kind::kNone, "", "null"},
      {R"({"response_format": {"type": "json_object"}})", Kind::kJsonObject, "response_format",
       "null"},
      {R"({"response_format": {"type": "json_object", "schema": {"type": "null"}}})", Kind::kSchema,
       "response_format.schema", R"({"type": "null"})"},
      {R"({"response_format": {"type": "json_schema", "schema": {"type": "null"}}})", Kind::kSchema,
       "response_format.schema", R"({"type": "null"})"},
      {R"({"response_format": {"type": "json_schema",
           "json_schema": {"name": "x", "strict": true, "schema": {"type": "null"}}}})",
       Kind::kSchema, "response_format.json_schema.schema", R"({"type": "null"})"},
      {R"({"guided_json": {"type": "null"}})", Kind::kSchema, "guided_json", R"({"type": "null"})"},
      {R"({"guided_json": "{\"type\": \"null\"}"})", Kind::kSchema, "guided_json",
       R"({"type": "null"})"},
      {R"({"guided_regex": "a+"})", Kind::kRegex, "guided_regex", R"("a+")"},
      {R"({"guided_choice": ["yes", "no"]})", Kind::kChoice, "guided_choice", R"(["yes", "no"])"},
      {R"({"guided_grammar": "root ::= \"a\""})", Kind::kGrammar, "guided_grammar",
       R"("root ::= \"a\"")"},
      {R"({"structured_outputs": {"json": {"type": "null"}}})", Kind::kSchema,
       "structured_outputs.json", R"({"type": "null"})"},
      {R"({"structured_outputs": {"regex": "a"}})", Kind::kRegex, "structured_outputs.regex",
       R"("a")"},
      {R"({"structured_outputs": {"choice": ["a"]}})", Kind::kChoice, "structured_outputs.choice",
       R"(["a"])"},
      {R"({"structured_outputs": {"grammar": "a"}})", Kind::kGrammar, "structured_outputs.grammar",
       R"("a")"},
      {R"({"structured_outputs": {"json_object": true}})", Kind::kJsonObject,
       "structured_outputs.json_object", "null"},
      {R"({"grammar": "root ::= \"a\"", "json_schema": null})", Kind::kGrammar, "grammar",
       R"("root ::= \"a\"")"},
      {R"({"json_schema": {"type": "null"}, "grammar": ""})", Kind::kSchema, "json_schema",
       R"({"type": "null"})"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.body);
    Warnings warnings;
    const Structure structure = parsed(c.body, warnings);
    EXPECT_EQ(structure.kind, c.kind);
    EXPECT_EQ(structure.field, c.field);
    EXPECT_EQ(structure.value, Json::parse(c.value));
    EXPECT_TRUE(warnings.empty()) << warnings[0];
  }
}

TEST(Structure, RefusalsNameTheField) {
  const struct {
    const char *body, *field;
  } kCases[] = {
      {R"({"response_format": {"type": "xml"}})", "response_format.type"},
      {R"({"response_format": {"type": "json_schema"}})", "response_format.json_schema"},
      {R"({"response_format": {"type": "json_schema", "json_schema": {}}})",
       "response_format.json_schema.schema"},
      {R"({"guided_json": "{"})", "guided_json"},
      {R"({"guided_choice": []})", "guided_choice"},
      {R"({"guided_choice": ["a", ""]})", "guided_choice"},
      {R"({"guided_choice": "yes"})", "guided_choice"},
      {R"({"guided_regex": 3})", "guided_regex"},
      {R"({"structured_outputs": {"structural_tag": "x"}})", "structured_outputs.structural_tag"},
      {R"({"guided_whitespace_pattern": " "})", "guided_whitespace_pattern"},
      {R"({"structural_tag": {}})", "structural_tag"},
      {R"({"guided_regex": "a", "guided_choice": ["b"]})", "guided_choice"},
      {R"({"response_format": {"type": "json_object"}, "grammar": "root ::= \"a\""})", "grammar"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.body);
    Warnings warnings;
    try {
      parsed(c.body, warnings);
      ADD_FAILURE() << "not refused";
    } catch (const ApiError& e) {
      EXPECT_EQ(e.object().at("param"), c.field) << e.what();
    }
  }
}

}  // namespace
}  // namespace replayssm::server
