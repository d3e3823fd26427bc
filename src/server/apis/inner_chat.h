// A request of another API as the chat request that it stands for: both of OpenAI's chat forms and
// Anthropic's reach the engine by parse_chat() alone.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/api_error.h"
#include "server/request/fields.h"

namespace replayssm::server {

inline constexpr size_t kMaxInputItems = 65536;
inline constexpr size_t kMaxInputTools = 1024;

// What the chat request's fields are called by the client.
class FieldNames {
 public:
  void add(std::string inner, std::string outer);
  // The longest inner name that `field` is, or begins with, is replaced.
  std::string outer(const std::string& field) const;
  ApiError outer(const ApiError& error) const;
  // Warnings begin with the field's name.
  void rename(Warnings& warnings) const;

 private:
  std::vector<std::pair<std::string, std::string>> names_;
};

struct InnerChat {
  Json body = Json::object();  // of POST /v1/chat/completions
  FieldNames names;
  Warnings warnings;
};

// Calls `make` with errors in the client's names.
template <typename Make>
auto with_names(const FieldNames& names, const Make& make) {
  try {
    return make();
  } catch (const ApiError& error) {
    throw names.outer(error);
  }
}

// A string, or the texts of content parts whose type is one of `types`, as a chat message's
// content. Another type is refused by name.
Json text_content(const Json& content, const std::string& path, const std::set<std::string>& types);

// Adds the tool at `outer` ("tools[2]") to the chat request; `schema` is what its parameters are
// called there.
void add_tool(InnerChat& chat, const std::string& outer, const char* schema,
              const std::string& name, const std::string& description, const Json* parameters);

// One tool that cannot be served does not block the others: it is left out with a warning. Refused
// if none is left of those that were sent.
void drop_tool(InnerChat& chat, const std::string& path, const std::string& type, bool last);

// The fields that nobody read go to the chat request as they are, which serves, refuses or ignores
// them. Those that it would read with another meaning are refused.
void pass_on(InnerChat& chat, const Fields& fields);

}  // namespace replayssm::server
