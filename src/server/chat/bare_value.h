// Values that a call writes without quotes: what such a text is, its schema says.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"

namespace replayssm::server {

// The value that `text` stands for. `root` holds the definitions that the schema refers to.
// A text is, in this order: a value of `enum` or `const`; null, where null is allowed and it says
// so; a string, where one is allowed (a schema that says nothing allows all); else what it reads
// as. Blanks at the ends belong to a string without a length, pattern or format, all but a line
// feed. None: the text is empty, and neither a string nor null is allowed.
std::optional<Json> bare_value(std::string_view text, const Json& schema, const Json& root);

// What an object schema says of its property `name`, directly or behind $ref, allOf, anyOf and
// oneOf; none if it does not name it.
std::optional<Json> property_schema(const Json& schema, const Json& root, const std::string& name);

// Whether each object that fits the schema has the property.
bool requires_property(const Json& schema, const Json& root, const std::string& name);

// Why some value that fits the schema would come out of bare_value() as one that does not; empty if
// none would. `end` is the mark behind a value.
std::string not_bare(const Json& schema, const Json& root, std::string_view end);

}  // namespace replayssm::server
