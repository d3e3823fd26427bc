// POST /v1/completions.
#pragma once

#include "server/request/common.h"

namespace replayssm::server {

struct CompletionRequest {
  CommonRequest common;
  std::vector<std::vector<int32_t>> prompts;  // at least one, none empty
  bool echo = false;
  int32_t logprobs = -1;
};

// Throws ApiError.
CompletionRequest parse_completion(const Json& body, const ServedModel& model, bool test_hooks);

}  // namespace replayssm::server
