// Which JSON schemas can be enforced to the letter.
#pragma once

#include <string>

#include "server/request/fields.h"

namespace replayssm::server {

inline constexpr size_t kMaxSchemaBytes = size_t{256} << 10;

// The schema as the grammar compiler enforces it: oneOf as anyOf, with a warning; enum and const
// without the type beside them; required properties listed; patterns as in pattern.h. Throws
// ApiError naming the keyword, as a path from `field`, that would not be enforced.
Json checked_schema(const Json& schema, const std::string& field, Warnings& warnings);

}  // namespace replayssm::server
