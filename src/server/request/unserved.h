// Fields of other servers that change the answer and are not served here.
#pragma once

#include <span>
#include <string_view>

#include "server/request/fields.h"

namespace replayssm::server {

struct UnservedField {
  std::string_view name;
  std::string_view
      neutral;  // the value in JSON that changes nothing and is let through; may be empty
  std::string_view instead;  // what serves
  bool chat_alone = false;
};

std::span<const UnservedField> unserved_fields();

// Throws ApiError naming the field and what serves instead of it.
void refuse_unserved(Fields& fields, bool chat);

}  // namespace replayssm::server
