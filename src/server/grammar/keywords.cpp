#include "server/grammar/keywords.h"

#include <algorithm>
#include <cmath>

namespace replayssm::server {
namespace {

// The type that is in both sets; an integer is a number.
TypeSet common_types(const TypeSet& a, const TypeSet& b) {
  TypeSet out;
  const auto has = [](const TypeSet& set, const std::string& type) {
    return set.contains(type) || (type == "integer" && set.contains("number"));
  };
  for (const TypeSet* set : {&a, &b}) {
    for (const std::string& type : *set) {
      if (has(a, type) && has(b, type)) out.insert(type);
    }
  }
  if (out.contains("number")) out.erase("integer");
  return out;
}

int64_t smaller(int64_t a, int64_t b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

// Of two that may be absent, the one, or what both must be.
template <typename T>
std::optional<T> equal_or(const std::optional<T>& a, const std::optional<T>& b,
                          const char* keyword) {
  if (a && b && *a != *b) throw NotMerged{keyword};
  return a ? a : b;
}

Json all_of(const Json& a, const Json& b) {
  if (a == b || b == Json(true)) return a;
  if (a == Json(true)) return b;
  if (a == Json(false) || b == Json(false)) return false;
  return {{"allOf", Json::array({a, b})}};
}

std::optional<Json> all_of(const std::optional<Json>& a, const std::optional<Json>& b) {
  return a && b ? all_of(*a, *b) : a ? a : b;
}

// The schema that a property has for a side that does not name it.
Json unnamed(const Keywords& side) {
  if (side.key_pattern) throw NotMerged{"patternProperties"};
  return side.others.value_or(Json(true));
}

Json merged_properties(const Keywords& a, const Keywords& b) {
  Json out = Json::object();
  for (const auto& item : a.properties.items()) {
    const auto other = b.properties.find(item.key());
    out[item.key()] = all_of(item.value(), other == b.properties.end() ? unnamed(b) : *other);
  }
  for (const auto& item : b.properties.items()) {
    if (!a.properties.contains(item.key())) {
      out[item.key()] = all_of(item.value(), unnamed(a));
    }
  }
  return out;
}

}  // namespace

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

bool same_value(const Json& a, const Json& b) {
  return a.is_boolean() == b.is_boolean() && nlohmann::json(a) == nlohmann::json(b);
}

void Bounds::raise(const Json& value, bool exclusive) {
  if (least && (*least > value || (*least == value && (least_is_exclusive || !exclusive)))) return;
  least = value;
  least_is_exclusive = exclusive;
}

void Bounds::lower(const Json& value, bool exclusive) {
  if (most && (*most < value || (*most == value && (most_is_exclusive || !exclusive)))) return;
  most = value;
  most_is_exclusive = exclusive;
}

bool Keywords::empty() const {
  return !types && !values && min_length == 0 && max_length < 0 && !pattern && !format &&
         !bounds.least && !bounds.most && !whole && !items && prefix.empty() && min_items == 0 &&
         max_items < 0 && !unique && properties.empty() && required.empty() && !others && !closed &&
         !key_pattern && !key_values && min_properties == 0 && max_properties < 0;
}

std::optional<Keywords> merge(const Keywords& a, const Keywords& b) {
  Keywords out = a;
  if (a.types && b.types) {
    out.types = common_types(*a.types, *b.types);
    if (a.nullable && b.nullable) out.types->insert("null");
    if (out.types->empty()) return {};
  } else if (b.types) {
    out.types = b.types;
  }
  if (a.values && b.values) {
    out.values = Json::array();
    for (const Json& value : *a.values) {
      const bool common = std::any_of(b.values->begin(), b.values->end(),
                                      [&](const Json& other) { return same_value(value, other); });
      if (common) out.values->push_back(value);
    }
    if (out.values->empty()) return {};
  } else if (b.values) {
    out.values = b.values;
    out.values_keyword = b.values_keyword;
  }
  out.min_length = std::max(a.min_length, b.min_length);
  out.max_length = smaller(a.max_length, b.max_length);
  out.pattern = equal_or(a.pattern, b.pattern, "pattern");
  out.format = equal_or(a.format, b.format, "format");
  if (b.bounds.least) out.bounds.raise(*b.bounds.least, b.bounds.least_is_exclusive);
  if (b.bounds.most) out.bounds.lower(*b.bounds.most, b.bounds.most_is_exclusive);
  out.whole = a.whole || b.whole;
  if (!a.prefix.empty() && !b.prefix.empty()) throw NotMerged{"prefixItems"};
  if ((!a.prefix.empty() && b.items) || (!b.prefix.empty() && a.items)) throw NotMerged{"items"};
  out.prefix = a.prefix.empty() ? b.prefix : a.prefix;
  out.items = all_of(a.items, b.items);
  out.min_items = std::max(a.min_items, b.min_items);
  out.max_items = smaller(a.max_items, b.max_items);
  out.unique = a.unique || b.unique;
  out.properties = merged_properties(a, b);
  out.required.insert(b.required.begin(), b.required.end());
  out.others = all_of(a.others, b.others);
  out.closed = a.closed || b.closed;
  if (a.key_pattern || b.key_pattern) {
    if (!a.properties.empty() || !b.properties.empty() || a.others || b.others) {
      throw NotMerged{"patternProperties"};
    }
  }
  out.key_pattern = equal_or(a.key_pattern, b.key_pattern, "patternProperties");
  out.key_values = equal_or(a.key_values, b.key_values, "propertyNames");
  out.min_properties = std::max(a.min_properties, b.min_properties);
  out.max_properties = smaller(a.max_properties, b.max_properties);
  out.nullable = a.nullable && b.nullable;
  return out;
}

}  // namespace replayssm::server
