// POST /v1/messages, Anthropic's form.
#pragma once

#include "server/apis/inner_chat.h"

namespace replayssm::server {

struct MessagesRequest {
  InnerChat chat;
  bool parallel_calls = true;
};

// `counting`: max_tokens may be absent. Throws ApiError.
MessagesRequest translate_messages(const Json& body, bool counting);

}  // namespace replayssm::server
