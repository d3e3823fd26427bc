// Which JSON schemas can be enforced to the letter.
#pragma once

#include <string>

#include "server/request/fields.h"

namespace replayssm::server {

// The schema as the grammar compiler takes it: oneOf as anyOf, with a warning. Throws ApiError
// naming the keyword, as a path from `field`, that would not be enforced.
Json checked_schema(const Json& schema, const std::string& field, Warnings& warnings);

}  // namespace replayssm::server
