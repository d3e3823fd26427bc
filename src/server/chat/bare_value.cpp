#include "server/chat/bare_value.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "server/chat/loose_value.h"

namespace replayssm::server {
namespace {

constexpr int kMaxDepth = 16;  // of references and alternatives

enum Kind : unsigned {
  kString = 1,
  kNull = 2,
  kBoolean = 4,
  kInteger = 8,
  kNumber = 16,
  kArray = 32,
  kObject = 64,
  kAll = 127,
};

// What a schema allows: any value of some kinds, and single values.
struct Allowed {
  unsigned kinds = kAll;
  std::vector<const Json*> values;
  bool bounded = false;  // its strings have a length, a pattern or a format
};

unsigned kind_of(const Json& name) {
  constexpr std::pair<std::string_view, unsigned> kNames[] = {{"string", kString},
                                                              {"null", kNull},
                                                              {"boolean", kBoolean},
                                                              {"integer", kInteger},
                                                              {"number", kInteger | kNumber},
                                                              {"array", kArray},
                                                              {"object", kObject}};
  for (const auto& [known, kind] : kNames) {
    if (name.is_string() && name.get_ref<const std::string&>() == known) return kind;
  }
  return 0;
}

bool has_any(const Json& schema, std::initializer_list<const char*> keys) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const char* key) { return schema.contains(key); });
}

// By "type", or by what the other keywords are about.
unsigned own_kinds(const Json& schema) {
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (!type->is_array()) return kind_of(*type);
    unsigned kinds = 0;
    for (const Json& name : *type) kinds |= kind_of(name);
    return kinds;
  }
  if (has_any(schema, {"properties", "required", "additionalProperties"})) return kObject;
  if (has_any(schema, {"items", "prefixItems", "minItems", "maxItems"})) return kArray;
  if (has_any(schema, {"minLength", "maxLength", "pattern"})) return kString;
  if (has_any(schema, {"minimum", "maximum", "multipleOf"})) return kInteger | kNumber;
  return kAll;
}

const Json* resolved(const Json& ref, const Json& root) {
  if (!ref.is_string()) return nullptr;
  const std::string& text = ref.get_ref<const std::string&>();
  if (!text.starts_with("#")) return nullptr;
  try {
    const Json::json_pointer pointer(text.substr(1));
    return root.contains(pointer) ? &root.at(pointer) : nullptr;
  } catch (const Json::exception&) {
    return nullptr;
  }
}

// Calls visit(other) for each schema that one refers to or joins, so that must hold beside it.
template <typename Visit>
void for_each_joined(const Json& schema, const Json& root, const Visit& visit) {
  if (const auto ref = schema.find("$ref"); ref != schema.end()) {
    if (const Json* other = resolved(*ref, root)) visit(*other);
  }
  if (const auto list = schema.find("allOf"); list != schema.end() && list->is_array()) {
    for (const Json& one : *list) visit(one);
  }
}

std::optional<Json> property_at(const Json& schema, const Json& root, const std::string& name,
                                int depth) {
  if (!schema.is_object() || depth > kMaxDepth) return {};
  Json all = Json::array();
  const auto own = schema.find("properties");
  if (own != schema.end() && own->is_object() && own->contains(name)) all.push_back((*own)[name]);
  for_each_joined(schema, root, [&](const Json& other) {
    if (auto found = property_at(other, root, name, depth + 1)) all.push_back(std::move(*found));
  });
  for (const char* key : {"anyOf", "oneOf"}) {
    const auto list = schema.find(key);
    if (list == schema.end() || !list->is_array()) continue;
    Json any = Json::array();
    for (const Json& one : *list) {
      if (auto found = property_at(one, root, name, depth + 1)) any.push_back(std::move(*found));
    }
    if (!any.empty()) all.push_back(Json::object({{"anyOf", std::move(any)}}));
  }
  if (all.empty()) return {};
  if (all.size() == 1) return std::move(all[0]);
  return Json::object({{"allOf", std::move(all)}});
}

bool requires_at(const Json& schema, const Json& root, const std::string& name, int depth) {
  if (!schema.is_object() || depth > kMaxDepth) return false;
  const auto own = schema.find("required");
  if (own != schema.end() && own->is_array() &&
      std::find(own->begin(), own->end(), name) != own->end()) {
    return true;
  }
  bool found = false;
  for_each_joined(schema, root, [&](const Json& other) {
    found = found || requires_at(other, root, name, depth + 1);
  });
  return found;
}

Allowed allowed_by(const Json& schema, const Json& root, int depth);

void join(Allowed& all, const Allowed& part) {
  all.values.insert(all.values.end(), part.values.begin(), part.values.end());
  all.bounded = all.bounded || part.bounded;
}

// What one of the schemas allows.
Allowed any_of(const Json& schemas, const Json& root, int depth) {
  Allowed any;
  any.kinds = 0;
  for (const Json& schema : schemas) {
    const Allowed one = allowed_by(schema, root, depth);
    any.kinds |= one.kinds;
    join(any, one);
  }
  return any;
}

Allowed allowed_by(const Json& schema, const Json& root, int depth) {
  Allowed allowed;
  if (!schema.is_object() || depth > kMaxDepth) return allowed;
  allowed.kinds = own_kinds(schema);
  allowed.bounded = has_any(schema, {"minLength", "maxLength", "pattern", "format"});
  if (schema.value("nullable", Json()) == true) allowed.kinds |= kNull;
  const auto narrow = [&](const Allowed& other) {
    allowed.kinds &= other.kinds;
    join(allowed, other);
  };
  if (const auto ref = schema.find("$ref"); ref != schema.end()) {
    if (const Json* other = resolved(*ref, root)) narrow(allowed_by(*other, root, depth + 1));
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const auto list = schema.find(key);
    if (list != schema.end() && list->is_array()) narrow(any_of(*list, root, depth + 1));
  }
  if (const auto list = schema.find("allOf"); list != schema.end() && list->is_array()) {
    for (const Json& one : *list) narrow(allowed_by(one, root, depth + 1));
  }
  const auto values = schema.find("enum");
  const auto value = schema.find("const");
  if (values != schema.end() && values->is_array()) {
    for (const Json& one : *values) allowed.values.push_back(&one);
    allowed.kinds = 0;
  }
  if (value != schema.end()) {
    allowed.values = {&*value};
    allowed.kinds = 0;
  }
  return allowed;
}

unsigned kind_of_value(const Json& value) {
  if (value.is_string()) return kString;
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_number_integer()) return kInteger;
  if (value.is_number()) return kNumber;
  return value.is_array() ? kArray : kObject;
}

// As JSON or near it, if all of the text is; a whole number is an integer where one is wanted.
std::optional<Json> read(std::string_view text, unsigned kinds) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "true") return true;
  if (lower == "false") return false;
  if (lower == "null" || lower == "none") return nullptr;
  LooseValue read = read_loose(text, TextEnd::kCut);
  if (read.state != LooseValue::State::kValue || read.length != text.size()) return {};
  if (read.value.is_number_float() && (kinds & kInteger) != 0 && (kinds & kNumber) == 0) {
    constexpr double kExact = 9007199254740992;  // 2^53
    const double number = read.value.get<double>();
    if (number == std::floor(number) && std::fabs(number) <= kExact) {
      return static_cast<int64_t>(number);
    }
  }
  return std::move(read.value);
}

std::string_view without_line_feeds(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

std::optional<Json> value_of(std::string_view text, const Allowed& allowed) {
  const std::string_view bare = trimmed(text);
  const std::string_view plain = without_line_feeds(text);
  for (const std::string_view form : {plain, bare}) {
    for (const Json* value : allowed.values) {
      if (value->is_string() && value->get_ref<const std::string&>() == form) return *value;
    }
  }
  const std::optional<Json> parsed = read(bare, allowed.kinds);
  for (const Json* value : allowed.values) {
    if (parsed && !value->is_string() && *value == *parsed) return *value;
  }
  const auto allows = [&](unsigned kind) { return (allowed.kinds & kind) != 0; };
  const bool unsaid = allowed.kinds == kAll;  // then all is a string
  if (bare == "null" && allows(kNull) && !unsaid) return nullptr;
  const bool some_string = std::any_of(allowed.values.begin(), allowed.values.end(),
                                       [](const Json* value) { return value->is_string(); });
  if (allows(kString)) return std::string(allowed.bounded ? bare : plain);
  if (bare.empty()) {
    if (allows(kNull)) return nullptr;
    return some_string ? std::optional<Json>(std::string()) : std::nullopt;
  }
  const bool fits = parsed && allows(kind_of_value(*parsed));
  if (parsed && (fits || !some_string)) return *parsed;
  return std::string(plain);
}

}  // namespace

std::optional<Json> bare_value(std::string_view text, const Json& schema, const Json& root) {
  return value_of(text, allowed_by(schema, root, 0));
}

std::optional<Json> property_schema(const Json& schema, const Json& root, const std::string& name) {
  return property_at(schema, root, name, 0);
}

bool requires_property(const Json& schema, const Json& root, const std::string& name) {
  return requires_at(schema, root, name, 0);
}

std::string not_bare(const Json& schema, const Json& root, std::string_view end) {
  const Allowed allowed = allowed_by(schema, root, 0);
  for (const Json* value : allowed.values) {
    const std::string text = value->is_string() ? value->get<std::string>() : dump_json(*value);
    if (text.find(end) != std::string::npos ||
        value_of("\n" + text + "\n", allowed) != std::optional<Json>(*value)) {
      return concat("the value ", dump_json(*value).substr(0, 80),
                    " cannot be told from another where values have no quotes");
    }
  }
  const unsigned others = allowed.kinds & ~unsigned{kString | kNull};
  if ((allowed.kinds & kString) != 0 && allowed.bounded && others != 0) {
    return "a string with a length, pattern or format cannot be told from a value of another type "
           "where values have no quotes";
  }
  return {};
}

}  // namespace replayssm::server
