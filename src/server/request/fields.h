// Strict reading of a request's JSON object: each field has one type and a range; what nobody asked
// for is told to the client in a warning.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/json.h"

namespace replayssm::server {

using Warnings = std::vector<std::string>;

// Throws ApiError (400, naming the field) on a wrong type or value. A field that is null counts as
// absent. The object must outlive this.
class Fields {
 public:
  // `path`: where the object stands in the request, for messages; empty for the request itself.
  Fields(const Json& object, std::string path);

  // Null if absent.
  const Json* find(const std::string& name);
  std::optional<bool> boolean(const std::string& name);
  std::optional<int64_t> integer(const std::string& name, int64_t least, int64_t most);
  std::optional<double> number(const std::string& name, double least, double most);
  std::optional<std::string> string(const std::string& name);
  // A string or a list of strings; empty if absent.
  std::vector<std::string> strings(const std::string& name, size_t most, size_t most_bytes);
  // Token ids in [0, vocab).
  std::vector<int32_t> token_ids(const std::string& name, size_t most, int64_t vocab);
  const Json* object(const std::string& name);
  const Json* array(const std::string& name, size_t most);

  // "messages[2].content" for "content".
  std::string path_of(const std::string& name) const;
  // The fields that were present and not read.
  Json unread() const;
  // A warning for each of them.
  void warn_unread(Warnings& warnings) const;

 private:
  const Json& object_;
  const std::string path_;
  std::set<std::string> read_;
};

// Ids of a JSON list; `path` names it in errors.
std::vector<int32_t> token_ids_of(const Json& list, const std::string& path, int64_t vocab);

}  // namespace replayssm::server
