// The keywords of one JSON schema without the schemas that it combines.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "core/json.h"

namespace replayssm::server {

using TypeSet = std::set<std::string>;

// An interval of numbers; the bounds are parts of it unless they are exclusive.
struct Bounds {
  std::optional<Json> least;
  std::optional<Json> most;
  bool least_is_exclusive = false;
  bool most_is_exclusive = false;

  void raise(const Json& value, bool exclusive);
  void lower(const Json& value, bool exclusive);
};

// Schemas in it are as the request has them, or {"allOf": [...]} of such.
struct Keywords {
  std::optional<TypeSet> types;  // none: any
  std::optional<Json> values;    // of enum and const: a list
  std::string values_keyword;    // which of them

  int64_t min_length = 0;
  int64_t max_length = -1;  // -1: any, as for all of these
  std::optional<std::string> pattern;
  std::optional<std::string> format;

  Bounds bounds;
  bool whole = false;  // multipleOf: 1

  std::optional<Json> items;  // behind prefix
  Json prefix = Json::array();
  int64_t min_items = 0;
  int64_t max_items = -1;
  bool unique = false;

  Json properties = Json::object();
  std::set<std::string> required;
  std::optional<Json> others;       // additionalProperties
  bool closed = false;              // unevaluatedProperties: false
  std::optional<Json> key_pattern;  // patternProperties: {pattern: schema}, one
  std::optional<Json> key_values;   // propertyNames: a list of names
  int64_t min_properties = 0;
  int64_t max_properties = -1;

  bool nullable = false;

  // Once all that the schema joins is in it: what is not named is not allowed, if it is closed.
  void close() {
    if (closed && !others && !key_pattern) others = false;
    closed = false;
  }

  // Whether anything but `nullable` is said.
  bool empty() const;
};

// Thrown by merge() where what both say cannot be said by one; holds the keyword.
struct NotMerged {
  std::string keyword;
};

// What both allow, exactly; nothing if that is nothing at first sight.
std::optional<Keywords> merge(const Keywords& a, const Keywords& b);

// Whether a value is of the type, as JSON Schema sees it: 2.0 is an integer.
bool is_of_type(const Json& value, const std::string& type);

// Whether a value is equal for JSON Schema: 1 and 1.0 are, 1 and true are not.
bool same_value(const Json& a, const Json& b);

}  // namespace replayssm::server
