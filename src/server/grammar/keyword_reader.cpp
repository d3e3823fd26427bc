#include "server/grammar/keyword_reader.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "server/api_error.h"
#include "server/grammar/formats.h"
#include "server/grammar/pattern.h"

namespace replayssm::server {
namespace {

using Names = std::set<std::string>;

constexpr int64_t kMaxCount = 4096;  // of characters, items, values: the grammar grows
constexpr size_t kMaxLiteralBytes = size_t{16} << 10;  // of a const or one of an enum
constexpr size_t kMaxWarnings = 16;

const Names kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};
const Names kCombine = {"$ref", "anyOf", "oneOf", "allOf"};
// Say nothing about what is valid, and nobody expects it of them.
const Names kNotes = {
    "title",       "description", "default",      "example",         "examples",
    "$schema",     "$id",         "id",           "$anchor",         "$comment",
    "$vocabulary", "deprecated",  "readOnly",     "writeOnly",       "definitions",
    "$defs",       "xml",         "externalDocs", "propertyOrdering"};
const Names kRefused = {"not",         "if",           "then",        "else",
                        "contains",    "minContains",  "maxContains", "dependentSchemas",
                        "$dynamicRef", "$recursiveRef"};

std::string cut(const std::string& name) { return name.substr(0, 64); }

}  // namespace

class KeywordReader::Reading {
 public:
  Reading(KeywordReader& reader, const Json& schema, const std::string& path)
      : reader_(reader), schema_(schema), path_(path) {}

  Keywords all() {
    for (const auto& item : schema_.items()) one(item.key(), item.value());
    return std::move(out_);
  }

 private:
  using Method = void (Reading::*)(const Json&, const std::string& place);

  void one(const std::string& key, const Json& value) {
    static const std::map<std::string, Method> kMethods = {
        {"type", &Reading::type},
        {"enum", &Reading::values},
        {"const", &Reading::constant},
        {"nullable", &Reading::nullable},
        {"format", &Reading::format},
        {"pattern", &Reading::pattern},
        {"minLength", &Reading::min_length},
        {"maxLength", &Reading::max_length},
        {"minimum", &Reading::minimum},
        {"maximum", &Reading::maximum},
        {"exclusiveMinimum", &Reading::exclusive_minimum},
        {"exclusiveMaximum", &Reading::exclusive_maximum},
        {"multipleOf", &Reading::multiple_of},
        {"items", &Reading::items},
        {"prefixItems", &Reading::prefix_items},
        {"additionalItems", &Reading::additional_items},
        {"minItems", &Reading::min_items},
        {"maxItems", &Reading::max_items},
        {"uniqueItems", &Reading::unique_items},
        {"unevaluatedItems", &Reading::unevaluated_items},
        {"properties", &Reading::properties},
        {"required", &Reading::required},
        {"additionalProperties", &Reading::additional_properties},
        {"unevaluatedProperties", &Reading::unevaluated_properties},
        {"patternProperties", &Reading::pattern_properties},
        {"propertyNames", &Reading::property_names},
        {"minProperties", &Reading::min_properties},
        {"maxProperties", &Reading::max_properties},
        {"dependentRequired", &Reading::must_be_empty},
        {"dependencies", &Reading::must_be_empty},
    };
    const std::string place = path_ + "." + cut(key);
    if (const auto method = kMethods.find(key); method != kMethods.end()) {
      (this->*method->second)(value, place);
    } else if (kRefused.contains(key)) {
      refuse(place, "this keyword is not enforced; leave it out");
    } else if (!kNotes.contains(key) && !kCombine.contains(key) && !key.starts_with("x-")) {
      reader_.warn(concat(cut(key), " has no effect on the answer"));
    }
  }

  void type(const Json& value, const std::string& place) {
    out_.types = TypeSet();
    const Json list = value.is_array() ? value : Json::array({value});
    for (const Json& type : list) {
      if (!type.is_string() || !kTypes.contains(type.get<std::string>())) {
        refuse(place, "must be object, array, string, number, integer, boolean or null");
      }
      out_.types->insert(type.get<std::string>());
    }
    if (out_.types->empty()) refuse(place, "is empty: nothing would be valid");
  }

  void values(const Json& value, const std::string& place) {
    if (!value.is_array() || value.empty() || value.size() > kMaxCount) {
      refuse(place, concat("must be a list of 1 to ", kMaxCount, " values"));
    }
    for (const Json& literal : value) check_literal(literal, place);
    keep_values(value, place);
  }
  void constant(const Json& value, const std::string& place) {
    check_literal(value, place);
    keep_values(Json::array({value}), place);
  }
  static void check_literal(const Json& value, const std::string& place) {
    if (dump_json(value).size() > kMaxLiteralBytes) {
      refuse(place, concat("a value is larger than ", kMaxLiteralBytes, " bytes"));
    }
  }
  // enum and const may stand beside one another.
  void keep_values(const Json& list, const std::string& place) {
    Json kept = Json::array();
    for (const Json& value : list) {
      const bool fits = !out_.values || std::any_of(out_.values->begin(), out_.values->end(),
                                                    [&](auto& v) { return same_value(v, value); });
      if (fits) kept.push_back(value);
    }
    if (kept.empty()) refuse(place, "holds nothing that const and enum both allow");
    out_.values = std::move(kept);
    out_.values_keyword = place.substr(place.rfind('.') + 1);
  }

  void nullable(const Json& value, const std::string& place) {
    out_.nullable = boolean(value, place);
  }

  void format(const Json& value, const std::string& place) {
    if (!value.is_string()) refuse(place, "must be a string");
    const auto& name = value.get_ref<const std::string&>();
    if (const auto type = schema_.find("type"); type != schema_.end()) {
      const Json list = type->is_array() ? *type : Json::array({*type});
      if (std::find(list.begin(), list.end(), "string") == list.end()) return;
    }
    switch (kind_of_format(name)) {
      case FormatKind::kEnforced:
        out_.format = name;
        break;
      case FormatKind::kRefused:
        refuse(place, "this format is not enforced; leave it out");
      case FormatKind::kNote:
        reader_.warn(concat("format ", cut(name), " has no effect on the answer"));
    }
  }
  void pattern(const Json& value, const std::string& place) {
    if (!value.is_string() || value.get_ref<const std::string&>().size() > kMaxPatternBytes) {
      refuse(place, concat("must be a string of at most ", kMaxPatternBytes, " bytes"));
    }
    out_.pattern = value.get<std::string>();
  }
  void min_length(const Json& value, const std::string& place) {
    out_.min_length = count(value, place);
  }
  void max_length(const Json& value, const std::string& place) {
    out_.max_length = count(value, place);
  }

  void minimum(const Json& value, const std::string& place) {
    out_.bounds.raise(number(value, place), schema_.value("exclusiveMinimum", Json()) == true);
  }
  void maximum(const Json& value, const std::string& place) {
    out_.bounds.lower(number(value, place), schema_.value("exclusiveMaximum", Json()) == true);
  }
  // OpenAPI 3.0 has a boolean, which tells how minimum is meant.
  void exclusive_minimum(const Json& value, const std::string& place) {
    if (!value.is_boolean()) out_.bounds.raise(number(value, place), true);
  }
  void exclusive_maximum(const Json& value, const std::string& place) {
    if (!value.is_boolean()) out_.bounds.lower(number(value, place), true);
  }
  void multiple_of(const Json& value, const std::string& place) {
    if (number(value, place) != 1) refuse(place, "is not enforced, but for 1; leave it out");
    out_.whole = true;
  }

  void items(const Json& value, const std::string& place) {
    if (value.is_array()) {  // as drafts before 2020-12 write prefixItems
      prefix_items(value, place);
    } else {
      out_.items = value;
    }
  }
  void prefix_items(const Json& value, const std::string& place) {
    if (!value.is_array() || value.empty()) refuse(place, "must be a list of schemas");
    out_.prefix = value;
  }
  void additional_items(const Json& value, const std::string&) {
    if (schema_.value("items", Json()).is_array()) out_.items = value;
  }
  void min_items(const Json& value, const std::string& place) {
    out_.min_items = count(value, place);
  }
  void max_items(const Json& value, const std::string& place) {
    out_.max_items = count(value, place);
  }
  void unique_items(const Json& value, const std::string& place) {
    out_.unique = boolean(value, place);
  }
  void unevaluated_properties(const Json& value, const std::string& place) {
    out_.closed = !boolean(value, place);
  }
  void unevaluated_items(const Json& value, const std::string& place) {
    if (boolean(value, place)) return;
    if (!schema_.contains("items") && !schema_.contains("prefixItems")) out_.items = false;
  }

  void properties(const Json& value, const std::string& place) {
    if (!value.is_object()) refuse(place, "must be an object");
    out_.properties = value;
  }
  void required(const Json& value, const std::string& place) {
    const bool good = value.is_array() && std::all_of(value.begin(), value.end(),
                                                      [](auto& name) { return name.is_string(); });
    if (!good) refuse(place, "must be a list of strings");
    for (const Json& name : value) out_.required.insert(name.get<std::string>());
  }
  void additional_properties(const Json& value, const std::string&) { out_.others = value; }
  void pattern_properties(const Json& value, const std::string& place) {
    if (!value.is_object()) refuse(place, "must be an object");
    if (value.empty()) return;
    if (value.size() > 1 || schema_.contains("properties") ||
        schema_.value("additionalProperties", Json(false)) != Json(false)) {
      refuse(place, "is enforced with one pattern, without properties and additionalProperties");
    }
    out_.key_pattern = value;
  }
  void property_names(const Json& value, const std::string& place) {
    if (value == Json(true)) return;
    if (!value.is_object()) refuse(place, "must be a schema: an object or true");
    for (const auto& item : value.items()) {
      const bool type = item.key() == "type" && item.value() == "string";
      if (item.key() == "enum" && item.value().is_array()) {
        out_.key_values = item.value();
      } else if (!type && !kNotes.contains(item.key())) {
        refuse(place, "is not enforced, but for an enum; leave it out");
      }
    }
  }
  void min_properties(const Json& value, const std::string& place) {
    out_.min_properties = count(value, place);
  }
  void max_properties(const Json& value, const std::string& place) {
    out_.max_properties = count(value, place);
  }
  void must_be_empty(const Json& value, const std::string& place) {
    if (!value.empty()) refuse(place, "this keyword is not enforced; leave it out");
  }

  static bool boolean(const Json& value, const std::string& place) {
    if (!value.is_boolean()) refuse(place, "must be true or false");
    return value.get<bool>();
  }
  static Json number(const Json& value, const std::string& place) {
    if (!value.is_number() || !std::isfinite(value.get<double>()))
      refuse(place, "must be a number");
    return value;
  }
  int64_t count(const Json& value, const std::string& place) {
    const bool good = value.is_number() && value.get<double>() >= 0 &&
                      value.get<double>() <= kMaxCount && is_of_type(value, "integer");
    if (!good) refuse(place, concat("must be an integer in 0..", kMaxCount));
    reader_.n_counted_ += value.get<int64_t>();
    if (reader_.n_counted_ > 4 * kMaxCount) refuse(place, "the schema is too large");
    return value.get<int64_t>();
  }

  KeywordReader& reader_;
  const Json& schema_;
  const std::string& path_;
  Keywords out_;
};

KeywordReader::KeywordReader(std::string field, Warnings& warnings)
    : field_(std::move(field)), warnings_(warnings) {}

Keywords KeywordReader::read(const Json& schema, const std::string& path) {
  return Reading(*this, schema, path).all();
}

void KeywordReader::warn(const std::string& text) {
  const std::string warning = concat(field_, ": ", text);
  const bool known = std::find(warnings_.begin(), warnings_.end(), warning) != warnings_.end();
  if (!known && warnings_.size() < kMaxWarnings) warnings_.push_back(warning);
}

}  // namespace replayssm::server
