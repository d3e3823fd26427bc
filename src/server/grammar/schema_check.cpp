#include "server/grammar/schema_check.h"

#include <algorithm>
#include <set>

#include "server/api_error.h"

namespace replayssm::server {
namespace {

using Names = std::set<std::string>;

// Say nothing about what is valid.
const Names kNotes = {"title",    "description", "default",  "examples",  "$schema",     "$id",
                      "$comment", "deprecated",  "readOnly", "writeOnly", "definitions", "$defs"};
// Decide alone what is valid: beside one of them stand notes, or its type.
const Names kWhole = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
const Names kOfObject = {"properties", "required", "additionalProperties"};
const Names kOfArray = {"items", "prefixItems", "minItems", "maxItems"};
const Names kOfString = {"minLength", "maxLength", "pattern", "format"};
const Names kOfNumber = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"};
const Names kFormats = {"email", "date",     "time", "date-time", "duration",      "ipv4",
                        "ipv6",  "hostname", "uuid", "uri",       "uri-reference", "json-pointer"};
const Names kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};

constexpr int64_t kMostCount = 4096;  // of characters, items and properties: the grammar grows

class Checker {
 public:
  Checker(const Json& root, Warnings& warnings) : root_(root), warnings_(warnings) {}

  Json check(const Json& schema, const std::string& path) {
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) refuse(path, "false allows nothing");
      return schema;
    }
    if (!schema.is_object()) refuse(path, "must be a schema: an object or true");
    if (++n_schemas_ > kMostCount) refuse(path, "the schema is too large");
    Json out = Json::object();
    const Names types = types_of(schema, path);
    for (const auto& item : schema.items()) {
      const std::string& key = item.key();
      const std::string place = path + "." + key.substr(0, 64);
      check_keyword(schema, key, place, types);
      if (key == "oneOf") {
        note("oneOf is taken as anyOf");
        out["anyOf"] = convert("anyOf", item.value(), place);
      } else {
        out[key] = convert(key, item.value(), place);
      }
    }
    if (schema.contains("oneOf") && schema.contains("anyOf")) {
      refuse(path + ".oneOf", "cannot stand beside anyOf");
    }
    return out;
  }

 private:
  void note(const std::string& text) {
    const std::string warning = "response_format: " + text;
    if (std::find(warnings_.begin(), warnings_.end(), warning) == warnings_.end()) {
      warnings_.push_back(warning);
    }
  }

  static Names types_of(const Json& schema, const std::string& path) {
    Names types;
    const auto at = schema.find("type");
    if (at == schema.end()) return types;
    const Json list = at->is_array() ? *at : Json::array({*at});
    for (const Json& type : list) {
      if (!type.is_string() || !kTypes.contains(type.get<std::string>())) {
        refuse(path + ".type", "must be object, array, string, number, integer, boolean or null");
      }
      types.insert(type.get<std::string>());
    }
    return types;
  }

  // Whether the keyword is enforced where it stands.
  void check_keyword(const Json& schema, const std::string& key, const std::string& place,
                     const Names& types) const {
    if (kNotes.contains(key) || key == "type") return;
    if (kWhole.contains(key)) {
      for (const auto& other : schema.items()) {
        const bool type = other.key() == "type" && (key == "const" || key == "enum");
        if (other.key() != key && !kNotes.contains(other.key()) && !type) {
          refuse(place, concat("cannot stand beside ", other.key().substr(0, 64)));
        }
      }
      return;
    }
    const auto needs = [&](std::initializer_list<const char*> wanted) {
      const bool given = std::any_of(wanted.begin(), wanted.end(),
                                     [&](const char* type) { return types.contains(type); });
      if (!given) refuse(place, concat("needs \"type\": \"", *wanted.begin(), "\" beside it"));
    };
    if (kOfObject.contains(key)) {
      needs({"object"});
    } else if (kOfArray.contains(key)) {
      needs({"array"});
    } else if (kOfString.contains(key)) {
      needs({"string"});
      const bool shape = schema.contains("pattern") || schema.contains("format");
      if (shape && (schema.contains("minLength") || schema.contains("maxLength"))) {
        refuse(place, "pattern and format cannot stand beside minLength or maxLength");
      }
    } else if (kOfNumber.contains(key)) {
      needs({"integer", "number"});
    } else {
      refuse(place, "this keyword is not enforced; leave it out");
    }
  }

  Json convert(const std::string& key, const Json& value, const std::string& place) {
    if (key == "properties" || key == "$defs" || key == "definitions") {
      if (!value.is_object()) refuse(place, "must be an object");
      Json out = Json::object();
      for (const auto& item : value.items()) {
        out[item.key()] = check(item.value(), place + "." + item.key().substr(0, 64));
      }
      return out;
    }
    if (key == "anyOf" || key == "allOf" || key == "prefixItems") {
      if (!value.is_array() || value.empty()) refuse(place, "must be a list of schemas");
      if (key == "allOf" && value.size() != 1) refuse(place, "must hold one schema");
      Json out = Json::array();
      for (size_t i = 0; i < value.size(); ++i) {
        out.push_back(check(value[i], concat(place, "[", i, "]")));
      }
      return out;
    }
    if (key == "items" || key == "additionalProperties") {
      return value == Json(false) ? value : check(value, place);
    }
    check_value(key, value, place);
    return value;
  }

  void check_value(const std::string& key, const Json& value, const std::string& place) {
    if (key == "minItems" || key == "maxItems" || key == "minLength" || key == "maxLength") {
      const bool good = value.is_number_integer() && value.get<int64_t>() >= 0 &&
                        value.get<int64_t>() <= kMostCount;
      if (!good) refuse(place, concat("must be an integer in 0..", kMostCount));
      n_counted_ += value.get<int64_t>();
      if (n_counted_ > 4 * kMostCount) refuse(place, "the schema is too large");
    } else if (kOfNumber.contains(key)) {
      if (!value.is_number() || std::abs(value.get<double>()) > 1e15) {
        refuse(place, "must be a number of at most 1e15");
      }
    } else if (key == "pattern") {
      if (!value.is_string() || value.get_ref<const std::string&>().size() > 1024) {
        refuse(place, "must be a string of at most 1024 bytes");
      }
    } else if (key == "format") {
      if (!value.is_string() || !kFormats.contains(value.get<std::string>())) {
        refuse(place, "this format is not enforced; leave it out");
      }
    } else if (key == "required") {
      const bool good = value.is_array() && std::all_of(value.begin(), value.end(), [](auto& name) {
                          return name.is_string();
                        });
      if (!good) refuse(place, "must be a list of strings");
    } else if (key == "enum") {
      if (!value.is_array() || value.empty() || value.size() > kMostCount) {
        refuse(place, concat("must be a list of 1 to ", kMostCount, " values"));
      }
    } else if (key == "$ref") {
      check_reference(value, place);
    }
  }

  void check_reference(const Json& value, const std::string& place) const {
    if (!value.is_string()) refuse(place, "must be a string");
    const std::string& target = value.get_ref<const std::string&>();
    if (target == "#") return;
    if (!target.starts_with("#/")) refuse(place, "must point into this schema: #/...");
    try {
      if (root_.contains(Json::json_pointer(target.substr(1)))) return;
    } catch (const Json::exception&) {
    }
    refuse(place, "points nowhere");
  }

  const Json& root_;
  Warnings& warnings_;
  int64_t n_schemas_ = 0;
  int64_t n_counted_ = 0;
};

}  // namespace

Json checked_schema(const Json& schema, const std::string& field, Warnings& warnings) {
  return Checker(schema, warnings).check(schema, field);
}

}  // namespace replayssm::server
