// Reads the keywords of a JSON schema as clients and their tools write them.
#pragma once

#include <string>

#include "server/grammar/keywords.h"
#include "server/request/fields.h"

namespace replayssm::server {

// Of JSON Schema 2020-12 and its older drafts, and OpenAPI 3.0. Throws ApiError on what is not
// enforced, naming the keyword; tells what has no effect, but for plain notes, in a warning.
class KeywordReader {
 public:
  KeywordReader(std::string field, Warnings& warnings);

  // All keywords but $ref, anyOf, oneOf and allOf.
  Keywords read(const Json& schema, const std::string& path);
  // Once for each text.
  void warn(const std::string& text);

 private:
  class Reading;
  const std::string field_;
  Warnings& warnings_;
  int64_t n_counted_ = 0;
};

}  // namespace replayssm::server
