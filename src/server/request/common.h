// The fields that completions and chat completions share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "server/http/message.h"
#include "server/request/fields.h"
#include "server/request/structure.h"
#include "server/served_model.h"

namespace replayssm::server {

inline constexpr int32_t kMaxChoices = 128;  // of one HTTP request
inline constexpr int32_t kMaxLogprobs = 20;

struct CommonRequest {
  GenerationRequest engine;  // all but the prompt, name, max_new_tokens and constraint
  std::vector<std::string> stops;
  Structure structure;  // of the answer
  std::optional<int64_t> max_tokens;
  int64_t min_tokens = 0;  // before which no end token ends a choice
  bool stream = false;
  bool include_usage = false;
  bool skip_special_tokens = true;
  Warnings warnings;
};

// The JSON object that a request carries. Throws ApiError.
Json parse_body(const HttpRequest& request);

// Returns `name` if it may name a session (and a file): letters, digits, '_', '-', '.'; not first a
// '.'; at most 64. Throws ApiError.
std::string session_name(const std::string& name, const std::string& field);

// Refuses another model's name with 404, and fields that change the answer and are not served.
// `test_hooks`: takes scripted_drafts.
CommonRequest parse_common(Fields& fields, const ServedModel& model, bool chat, bool test_hooks);

// The prompt's length and max_tokens made to fit the model; a prompt that leaves no room for one
// token is a 400 that names both numbers. Returns max_new_tokens.
int64_t fit_length(size_t prompt_tokens, int64_t max_tokens, const ServedModel& model,
                   const std::string& prompt_field, Warnings& warnings);

// Refuses a min_tokens above max_tokens, which must be set.
void check_min_tokens(const CommonRequest& common);

}  // namespace replayssm::server
