// Which schemas are enforced, and which are refused by the keyword's name.
#include "server/grammar/schema_check.h"

#include <gtest/gtest.h>

#include "server/api_error.h"

namespace replayssm::server {
namespace {

TEST(SchemaCheck, RefusesWhatIsNotEnforcedByName) {
  const struct {
    const char *schema, *field;
  } kCases[] = {
      {R"({"type": "array", "uniqueItems": true})", "s.uniqueItems"},
      {R"({"type": "object", "properties": {"a": {"not": {}}}})", "s.properties.a.not"},
      {R"({"type": "integer", "multipleOf": 3})", "s.multipleOf"},
      {R"({"type": "object", "patternProperties": {"^a": {}, "^b": {}}})", "s.patternProperties"},
      {R"({"type": "string", "pattern": "a|bcd", "maxLength": 2})", "s.pattern"},
      {R"({"type": "string", "format": "uuid", "maxLength": 35})", "s.format"},
      {R"({"type": "string", "format": "uri-template"})", "s.format"},
      {R"({"type": "object", "propertyNames": {"pattern": "a"}})", "s.propertyNames"},
      {R"({"type": "object", "minProperties": 1})", "s.minProperties"},
      {R"({"type": "object", "required": ["a"], "unevaluatedProperties": false})", "s.required"},
      {R"({"type": "object", "additionalProperties": true, "maxProperties": 1})",
       "s.maxProperties"},
      {R"({"type": "object", "dependentRequired": {"a": ["b"]}})", "s.dependentRequired"},
      {R"({"if": {}, "then": {}})", "s.if"},
      {R"({"type": "array", "contains": {}})", "s.contains"},
      {R"({"type": "number", "multipleOf": 0.01})", "s.multipleOf"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "s.maximum"},
      {R"({"type": "string", "pattern": "a", "format": "date"})", "s.pattern"},
      {R"({"type": "text"})", "s.type"},
      {R"({"$ref": "other.json"})", "s.$ref"},
      {R"({"$ref": "#/$defs/none"})", "s.$ref"},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "s.allOf"},
      {R"({"allOf": [{"type": "string"}, {"type": "integer"}]})", "s"},
      {R"({"anyOf": []})", "s.anyOf"},
      {R"({"maxLength": 3, "maxItems": 3})", "s"},
      {R"({"type": "string", "maxLength": 100000})", "s.maxLength"},
      {R"({"type": "array", "items": {"type": "integer", "minimum": "1"}})", "s.items.minimum"},
      {R"({"enum": []})", "s.enum"},
      {R"({"type": "object", "required": "a"})", "s.required"},
      {R"({"type": "object", "required": ["a"], "additionalProperties": false})", "s.required"},
      {R"({"type": "integer", "enum": ["a", 1.5]})", "s.enum"},
      {R"({"type": "boolean", "const": 1})", "s.const"},
      {R"({"$ref": "#"})", "s.$ref"},
      {R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})", "s.anyOf[1].$ref"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "s"},
      {R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", "s"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}})",
       "s.$defs.a.allOf[0].$ref"},
      {R"({"$ref": "#/examples/0", "examples": [{"not": {}}]})", "s.examples.0.not"},
      {R"(7)", "s"},
      {R"(false)", "s"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.schema);
    Warnings warnings;
    try {
      checked_schema(Json::parse(c.schema), "s", warnings);
      ADD_FAILURE() << "not refused";
    } catch (const ApiError& e) {
      EXPECT_EQ(e.object().at("param"), c.field) << e.what();
    }
  }
}

TEST(SchemaCheck, RefusesPatternsThatItCannotHold) {
  for (const char* pattern : {"(?=a)b",
                              "^(?!a)b$",
                              "(?<=a)b",
                              "(?i)a",
                              "(a)\\1",
                              "\\bword",
                              "\\p{L}",
                              "\\q",
                              "x^y",
                              "a$b",
                              "(a$)b",
                              "(^a)*",
                              "^*",
                              "*a",
                              "a**",
                              "a{2",
                              "a{3,2}",
                              "a{99999}",
                              "((a{4000}){4000})",
                              "(a",
                              "a)",
                              "[a",
                              "[b-a]",
                              "[\\d-z]",
                              "[]",
                              "a\\",
                              "\"",
                              "\\\\",
                              "\n",
                              "\\n",
                              "[\"]",
                              "\\cA",
                              "\\u12",
                              "\\u{110000}",
                              "\\uD83D",
                              "\\uD83Dx"}) {
    Warnings warnings;
    EXPECT_THROW(checked_schema({{"type", "string"}, {"pattern", pattern}}, "s", warnings),
                 ApiError)
        << pattern;
  }
  std::string deep = "a";
  for (int i = 0; i < 400; ++i) deep = "(" + deep + ")";
  Warnings warnings;
  EXPECT_THROW(checked_schema({{"type", "string"}, {"pattern", deep}}, "s", warnings), ApiError);
}

// The work of a grammar grows with these, and all answers wait for it.
TEST(SchemaCheck, BoundsWhatAGrammarCosts) {
  Warnings warnings;
  Json optional = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 257; ++i) optional["properties"]["p" + std::to_string(i)] = true;
  EXPECT_THROW(checked_schema(optional, "s", warnings), ApiError);
  optional["required"] = {"p7"};
  EXPECT_NO_THROW(checked_schema(optional, "s", warnings));
  for (const char* key : {"const", "enum"}) {
    const Json value(std::string(20000, 'x'));
    Json literal = {{key, key == std::string("enum") ? Json::array({1, value}) : value}};
    EXPECT_THROW(checked_schema(literal, "s", warnings), ApiError);
  }
  EXPECT_THROW(checked_schema({{"title", std::string(300000, 'x')}}, "s", warnings), ApiError);
  Json patterns = {{"anyOf", Json::array()}};
  for (int i = 0; i < 30; ++i) {
    patterns["anyOf"].push_back({{"type", "string"}, {"pattern", concat("^[a-z]{100}", i, "$")}});
  }
  EXPECT_THROW(checked_schema(patterns, "s", warnings), ApiError);
  for (Json& same : patterns["anyOf"]) same["pattern"] = "^[a-z]{100}$";
  EXPECT_NO_THROW(checked_schema(patterns, "s", warnings));
  Json many = {{"anyOf", Json::array()}};
  for (int i = 0; i < 1100; ++i) many["anyOf"].push_back({{"type", "null"}});
  EXPECT_THROW(checked_schema(many, "s", warnings), ApiError);
}

// Keywords that say nothing, or nothing more than the schema does, as tools write them.
TEST(SchemaCheck, TakesWhatCannotFail) {
  const struct {
    const char* schema;
    bool warns;
  } kCases[] = {
      {R"({"title": "T", "description": "d", "default": 1, "examples": [1], "$schema": "x",
           "$id": "y", "$anchor": "z", "$comment": "c", "deprecated": true, "readOnly": true,
           "writeOnly": false, "x-order": 3, "type": "null"})",
       false},
      {R"({"type": "integer", "format": "int64", "multipleOf": 1, "minimum": -9007199254740991,
           "maximum": 9223372036854775807})",
       false},
      {R"({"type": "number", "format": "double"})", false},
      {R"({"type": "string", "format": "password", "minLength": 0})", true},
      {R"({"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"})", true},
      {R"({"type": "array", "items": {}, "uniqueItems": false, "minItems": 0})", false},
      {R"({"type": "array", "maxItems": 1, "uniqueItems": true})", false},
      {R"({"type": "object", "minProperties": 0, "patternProperties": {}, "dependentRequired": {},
           "propertyNames": {"type": "string"}, "unevaluatedProperties": false, "strict": true,
           "propertyOrdering": ["a"]})",
       true},
      {R"({"type": "string", "const": "a"})", false},
      {R"({"type": ["string", "null"], "enum": ["a", 1, null]})", false},
      {R"({"$ref": "#/$defs/a%20b", "description": "d", "$defs": {"a b": {"type": "null"}}})",
       false},
      {R"({"properties": {"a": {"type": "string"}}, "required": ["a"]})", true},
      {R"({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083})", false},
      {R"({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 9})", false},
      {R"({"oneOf": [{"type": "string"}, {"type": "null"}]})", false},
      {R"({"discriminator": {"propertyName": "k"}, "oneOf": [
           {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
           {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}]})",
       true},
      {R"({"oneOf": [{"type": "number"}, {"type": "integer"}]})", true},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.schema);
    Warnings warnings;
    EXPECT_NO_THROW(checked_schema(Json::parse(c.schema), "s", warnings));
    EXPECT_EQ(!warnings.empty(), c.warns);
    for (const auto& warning : warnings) EXPECT_TRUE(warning.starts_with("s: ")) << warning;
  }
}

TEST(SchemaCheck, JoinsExactly) {
  const struct {
    const char *schema, *out;
  } kCases[] = {
      {R"({"allOf": [{"type": "integer", "minimum": 1},
                     {"type": "number", "exclusiveMaximum": 9}]})",
       R"({"type": "integer", "minimum": 1, "maximum": 8})"},
      {R"({"type": "string", "allOf": [{"minLength": 1}, {"maxLength": 4}]})",
       R"({"type": "string", "minLength": 1, "maxLength": 4})"},
      {R"({"enum": ["a", "b", 3], "allOf": [{"type": "string"}, {"enum": ["b", "c"]}]})",
       R"({"enum": ["b"]})"},
      {R"({"type": "string", "nullable": true})", R"({"anyOf": [{"type": "string"},
       {"type": "null"}]})"},
      {R"({"type": ["integer", "number"]})", R"({"type": "number"})"},
      {R"({"allOf": [
           {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
           {"type": "object", "properties": {"b": {"type": "null"}}}]})",
       R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
           "required": ["a"], "additionalProperties": false})"},
      {R"({"allOf": [{"type": "object", "properties": {"a": {}}, "additionalProperties": false},
                     {"type": "object", "properties": {"a": {"type": "null"}, "b": {}}}]})",
       R"({"type": "object", "properties": {"a": {"type": "null"}},
           "additionalProperties": false})"},
      {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
           "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       R"({"anyOf": [
           {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
            "required": ["a"], "additionalProperties": false},
           {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
            "required": ["b"], "additionalProperties": false}]})"},
      {R"({"type": "object", "properties": {"b": {"type": "null"}}, "unevaluatedProperties": false,
           "allOf": [{"properties": {"a": {"type": "null"}}}]})",
       R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
           "additionalProperties": false})"},
      {R"({"type": "object", "properties": {"a": {"type": "null"}}, "allOf": [
           {"properties": {"b": {"type": "null"}}, "unevaluatedProperties": false}]})",
       R"({"type": "object", "properties": {"b": {"type": "null"}},
           "additionalProperties": false})"},
      {R"({"type": "array", "items": [{"type": "null"}], "additionalItems": false})",
       R"({"type": "array", "prefixItems": [{"type": "null"}], "items": false})"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.schema);
    Warnings warnings;
    EXPECT_EQ(nlohmann::json(checked_schema(Json::parse(c.schema), "s", warnings)),
              nlohmann::json::parse(c.out));
  }
}

// Chains and circles of references, joined alternatives: bounded before the work starts.
TEST(SchemaCheck, HostileSchemasAreRefusedSoon) {
  Warnings warnings;
  Json chain = {{"$ref", "#/$defs/0"}, {"$defs", Json::object()}};
  for (int i = 0; i < 900; ++i) {
    chain["$defs"][std::to_string(i)] = {{"$ref", concat("#/$defs/", i + 1)}};
  }
  chain["$defs"]["900"] = {{"type", "null"}};
  EXPECT_NO_THROW(checked_schema(chain, "s", warnings));
  chain["$defs"]["900"] = {{"$ref", "#/$defs/0"}};
  EXPECT_THROW(checked_schema(chain, "s", warnings), ApiError);
  Json product = {{"allOf", Json::array()}};
  for (int i = 0; i < 20; ++i) {
    Json branches = Json::array();
    for (int k = 0; k < 4; ++k) branches.push_back({{"required", {concat("p", i, "_", k)}}});
    product["allOf"].push_back({{"anyOf", branches}});
  }
  EXPECT_THROW(checked_schema(product, "s", warnings), ApiError);
  Json doubled = {{"$defs", Json::object()}, {"allOf", {{{"$ref", "#/$defs/0"}}, true}}};
  for (int i = 0; i < 40; ++i) {
    const Json next = {{"$ref", concat("#/$defs/", i + 1)}};
    doubled["$defs"][std::to_string(i)] = {{"allOf", {next, next}}};
  }
  doubled["$defs"]["40"] = {{"type", "null"}};
  EXPECT_THROW(checked_schema(doubled, "s", warnings), ApiError);
}

}  // namespace
}  // namespace replayssm::server
