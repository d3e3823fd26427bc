// Which JSON schemas can be enforced to the letter.
#pragma once

#include <string>

#include "server/grammar/pattern.h"
#include "server/request/fields.h"

namespace replayssm::server {

inline constexpr size_t kMaxSchemaBytes = size_t{256} << 10;

// The schema as the grammar compiler enforces it: every part of it is a reference into $defs, an
// anyOf, an enum, or has one type and that type's keywords; patterns are as in pattern.h. What it
// lets through is valid for `schema`, but not all that is valid is let through: objects have no
// properties but those named, where additionalProperties does not say what they are. Warnings tell
// what is not enforced. Throws ApiError naming the keyword, as a path from `field`, that cannot be.
// kBare: the schema's own properties are written between marks that name them, their strings bare
// (StringForm); what is inside arrays and objects of theirs is JSON.
Json checked_schema(const Json& schema, const std::string& field, Warnings& warnings,
                    StringForm form = StringForm::kQuoted);

}  // namespace replayssm::server
