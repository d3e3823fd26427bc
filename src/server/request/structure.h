// The field of a request that says which form the answer has.
#pragma once

#include <string>

#include "server/request/fields.h"

namespace replayssm::server {

struct Structure {
  enum class Kind { kNone, kJsonObject, kSchema, kRegex, kChoice, kGrammar };
  Kind kind = Kind::kNone;
  std::string field;  // where it stands in the request
  Json value;         // of kSchema the schema, of kChoice a list of strings, else a string
};

// OpenAI's response_format; vLLM's guided_json, guided_regex, guided_choice, guided_grammar and
// structured_outputs; llama.cpp's grammar and json_schema. Throws ApiError; two of them are
// refused.
Structure parse_structure(Fields& fields, Warnings& warnings);

}  // namespace replayssm::server
