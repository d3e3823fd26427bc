// POST /v1/responses.
#pragma once

#include <map>
#include <string>

#include "server/apis/inner_chat.h"

namespace replayssm::server {

// A function of the chat that was another kind of tool in the request.
struct ToolOrigin {
  std::string name;        // the client's
  std::string name_space;  // empty: none
  bool custom = false;     // its one argument is a text
};

struct ResponsesRequest {
  InnerChat chat;
  bool store = true;
  bool parallel_calls = true;
  bool carry_reasoning = false;  // as encrypted_content, for clients that keep nothing else
  std::map<std::string, ToolOrigin> origins;  // by the function's name
  Json messages = Json::array();  // the chat without `instructions`: what a next one goes on from
  Json echo = Json::object();     // the request's fields as the response object repeats them
};

// `previous`: the messages of the response that previous_response_id names; empty if it names none.
// Throws ApiError.
ResponsesRequest translate_responses(const Json& body, const Json& previous);

// Appends items (a request's input, a response's output) to chat messages; `names` may be null.
void append_items(Json& messages, const Json& items, Warnings& warnings, FieldNames* names);

// The reasoning in an encrypted_content of this server's; empty in another's.
std::string carried_reasoning(const std::string& encrypted);
std::string carry_reasoning(const std::string& reasoning);

}  // namespace replayssm::server
