// POST /v1/chat/completions.
#pragma once

#include "server/chat/chat_template.h"
#include "server/request/common.h"

namespace replayssm::server {

enum class ToolChoice { kNone, kAuto, kRequired };

struct ChatPrompt {
  std::string text;
  std::vector<int32_t> ids;
};

struct ChatRequest {
  CommonRequest common;
  ChatPrompt prompt;
  bool logprobs = false;
  bool opens_reasoning = false;  // the prompt ends inside a <think>
  Json tools = Json::array();    // those that may be called; empty with tool_choice none
  ToolChoice tool_choice = ToolChoice::kNone;
  bool parallel_calls = true;  // else the answer ends behind its first call
};

// Throws ApiError.
ChatRequest parse_chat(const Json& body, const ServedModel& model, bool test_hooks);

// The prompt of a body with messages, tools and template options alone.
ChatPrompt chat_prompt(const Json& body, const ServedModel& model);

}  // namespace replayssm::server
