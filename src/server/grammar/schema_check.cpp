#include "server/grammar/schema_check.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "server/api_error.h"
#include "server/grammar/pattern.h"

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

// In place of formats that the compiler takes less strictly: it knows a 31st of September (this
// knows no 29th of February) and numbers like 022.
constexpr const char* kDate =
    "\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|"
    "02-(0[1-9]|1\\d|2[0-8]))";
constexpr const char* kTime =
    "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+\\-]([01]\\d|2[0-3]):[0-5]\\d)";
constexpr const char* kOctet = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]\\d|\\d)";

std::string pattern_of_format(const std::string& format) {
  if (format == "date") return kDate;
  if (format == "time") return kTime;
  if (format == "date-time") return concat(kDate, "T", kTime);
  if (format == "ipv4") return concat("(", kOctet, "\\.){3}", kOctet);
  return {};
}

constexpr int64_t kMaxCount = 4096;  // of characters, items, values: the grammar grows
constexpr size_t kMaxSchemas = 1024;
constexpr size_t kMaxLiteralBytes = size_t{16} << 10;  // of a const or one of an enum
constexpr size_t kMaxOptional = 256;  // properties of one object: it grows with their square

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "integer") {
    return value.is_number_integer() ||
           (value.is_number() && value.get<double>() == std::floor(value.get<double>()));
  }
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  return type == "array" ? value.is_array() : value.is_object();
}

class Checker {
 public:
  Checker(const Json& root, Warnings& warnings) : root_(root), warnings_(warnings) {}

  Json whole(const std::string& path) {
    if (dump_json(root_).size() > kMaxSchemaBytes) {
      refuse(path, concat("is larger than ", kMaxSchemaBytes, " bytes"));
    }
    Json out = check(root_, path);
    for (const auto& [target, place] : references_) {
      if (!schemas_.contains(target)) refuse(place, "points at what is no schema here");
    }
    return out;
  }

 private:
  Json check(const Json& schema, const std::string& path) {
    schemas_.insert(&schema);
    if (schemas_.size() > kMaxSchemas) {
      refuse(path, concat("the schema is too large: more than ", kMaxSchemas, " schemas in all"));
    }
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) refuse(path, "false allows nothing");
      return schema;
    }
    if (!schema.is_object()) refuse(path, "must be a schema: an object or true");
    Json out = Json::object();
    const Names types = types_of(schema, path);
    for (const auto& item : schema.items()) {
      const std::string& key = item.key();
      const std::string place = path + "." + key.substr(0, 64);
      check_keyword(schema, key, place, types);
      if (key == "oneOf") {
        note("oneOf is taken as anyOf");
        out["anyOf"] = convert("anyOf", item.value(), place);
      } else if (const std::string strict =
                     key == "format" ? strict_format(item.value(), place) : "";
                 !strict.empty()) {
        out["pattern"] = convert("pattern", strict, place);
      } else {
        out[key] = convert(key, item.value(), place);
      }
    }
    if (types.contains("object")) require_properties(out, path);
    keep_type(out, types, path);
    check_circle(schema, path);
    return out;
  }

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

  // The compiler asks for a required property only where it is listed.
  static void require_properties(Json& schema, const std::string& path) {
    Json properties = schema.value("properties", Json::object());
    const Json others = schema.value("additionalProperties", Json(true));
    std::set<std::string> required;
    for (const Json& item : schema.value("required", Json::array())) {
      const std::string& name = item.get_ref<const std::string&>();
      required.insert(name);
      if (properties.contains(name)) continue;
      if (others == Json(false)) {
        refuse(path + ".required",
               concat("\"", name.substr(0, 64), "\" is none of the properties"));
      }
      properties[name] = others;
    }
    const size_t n_optional = properties.size() - required.size();
    if (n_optional > kMaxOptional) {
      refuse(path + ".properties",
             concat(n_optional, " are not required; at most ", kMaxOptional, " may be"));
    }
    if (!properties.empty()) schema["properties"] = std::move(properties);
  }

  // Beside enum and const the compiler does not look at the type.
  static void keep_type(Json& schema, const Names& types, const std::string& path) {
    if (types.empty() || !(schema.contains("enum") || schema.contains("const"))) return;
    const auto fits = [&](const Json& value) {
      return std::any_of(types.begin(), types.end(),
                         [&](const std::string& type) { return is_of_type(value, type); });
    };
    if (schema.contains("const") && !fits(schema["const"])) {
      refuse(path + ".const", "is not of the type beside it");
    }
    if (schema.contains("enum")) {
      Json kept = Json::array();
      for (const Json& value : schema["enum"]) {
        if (fits(value)) kept.push_back(value);
      }
      if (kept.empty()) refuse(path + ".enum", "holds nothing of the type beside it");
      schema["enum"] = std::move(kept);
    }
    schema.erase("type");
  }

  // A schema that is itself by references alone says nothing.
  void check_circle(const Json& schema, const std::string& path) const {
    std::vector<const Json*> next = {&schema};
    std::set<const Json*> seen;
    while (!next.empty()) {
      const Json* at = next.back();
      next.pop_back();
      if (at->is_boolean() || !seen.insert(at).second) continue;
      const auto visit = [&](const Json& other) {
        if (&other == &schema) refuse(path, "refers to itself and says nothing else");
        next.push_back(&other);
      };
      if (!at->is_object()) continue;
      if (const auto ref = at->find("$ref"); ref != at->end() && ref->is_string()) {
        visit(referred(*ref, path));
      }
      for (const char* key : {"anyOf", "oneOf", "allOf"}) {
        const auto list = at->find(key);
        if (list == at->end() || !list->is_array()) continue;
        for (const Json& branch : *list) visit(branch);
      }
    }
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
      if (schema.contains("pattern") && schema.contains("format")) {
        refuse(place, "pattern cannot stand beside format");
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
    if (key == "pattern") {
      if (!value.is_string() || value.get_ref<const std::string&>().size() > 1024) {
        refuse(place, "must be a string of at most 1024 bytes");
      }
      try {
        return enforced_pattern(value.get_ref<const std::string&>());
      } catch (const Error& e) {
        refuse(place, e.what());
      }
    }
    check_value(key, value, place);
    return value;
  }

  void check_value(const std::string& key, const Json& value, const std::string& place) {
    if (key == "minItems" || key == "maxItems" || key == "minLength" || key == "maxLength") {
      const bool good = value.is_number_integer() && value.get<int64_t>() >= 0 &&
                        value.get<int64_t>() <= kMaxCount;
      if (!good) refuse(place, concat("must be an integer in 0..", kMaxCount));
      n_counted_ += value.get<int64_t>();
      if (n_counted_ > 4 * kMaxCount) refuse(place, "the schema is too large");
    } else if (kOfNumber.contains(key)) {
      if (!value.is_number() || std::abs(value.get<double>()) > 1e15) {
        refuse(place, "must be a number of at most 1e15");
      }
    } else if (key == "required") {
      const bool good = value.is_array() && std::all_of(value.begin(), value.end(), [](auto& name) {
                          return name.is_string();
                        });
      if (!good) refuse(place, "must be a list of strings");
    } else if (key == "const") {
      check_literal(value, place);
    } else if (key == "enum") {
      if (!value.is_array() || value.empty() || value.size() > kMaxCount) {
        refuse(place, concat("must be a list of 1 to ", kMaxCount, " values"));
      }
      for (const Json& literal : value) check_literal(literal, place);
    } else if (key == "$ref") {
      if (!value.is_string()) refuse(place, "must be a string");
      references_.emplace_back(&referred(value, place), place);
    }
  }

  // The pattern that stands for a format; empty if the compiler's own does.
  static std::string strict_format(const Json& value, const std::string& place) {
    if (!value.is_string() || !kFormats.contains(value.get<std::string>())) {
      refuse(place, "this format is not enforced; leave it out");
    }
    return pattern_of_format(value.get<std::string>());
  }

  static void check_literal(const Json& value, const std::string& place) {
    if (dump_json(value).size() > kMaxLiteralBytes) {
      refuse(place, concat("a value is larger than ", kMaxLiteralBytes, " bytes"));
    }
  }

  const Json& referred(const Json& reference, const std::string& place) const {
    const std::string& target = reference.get_ref<const std::string&>();
    if (target == "#") return root_;
    if (!target.starts_with("#/")) refuse(place, "must point into this schema: #/...");
    try {
      return root_.at(Json::json_pointer(target.substr(1)));
    } catch (const Json::exception&) {
      refuse(place, "points nowhere");
    }
  }

  const Json& root_;
  Warnings& warnings_;
  std::set<const Json*> schemas_;  // that were checked
  std::vector<std::pair<const Json*, std::string>> references_;
  int64_t n_counted_ = 0;
};

}  // namespace

Json checked_schema(const Json& schema, const std::string& field, Warnings& warnings) {
  return Checker(schema, warnings).whole(field);
}

}  // namespace replayssm::server
