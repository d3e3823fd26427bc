#include "server/request/completion.h"

#include "server/api_error.h"

namespace replayssm::server {
namespace {

constexpr size_t kMaxPrompts = 128;

std::vector<std::vector<int32_t>> parse_prompts(Fields& fields, const ServedModel& model,
                                                bool continues) {
  // What goes on from a session lies in the middle of a text.
  const bool special = fields.boolean("add_special_tokens").value_or(!continues);
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) refuse("prompt", "is missing");
  std::vector<std::vector<int32_t>> prompts;
  if (prompt->is_string()) {
    prompts.push_back(model.encode(prompt->get_ref<const std::string&>(), special, "prompt"));
  } else if (!prompt->is_array() || prompt->empty()) {
    refuse("prompt", "must be a string, a list of token ids, or a list of either");
  } else if (prompt->front().is_number()) {
    prompts.push_back(token_ids_of(*prompt, "prompt", model.vocab));
  } else {
    if (prompt->size() > kMaxPrompts) {
      refuse("prompt", concat("has ", prompt->size(), " prompts; at most ", kMaxPrompts));
    }
    for (const Json& item : *prompt) {
      if (item.is_string()) {
        prompts.push_back(model.encode(item.get_ref<const std::string&>(), special, "prompt"));
      } else if (item.is_array()) {
        prompts.push_back(token_ids_of(item, "prompt", model.vocab));
      } else {
        refuse("prompt", "must be a string, a list of token ids, or a list of either");
      }
    }
  }
  return prompts;
}

}  // namespace

CompletionRequest parse_completion(const Json& body, const ServedModel& model, bool test_hooks) {
  CompletionRequest request;
  Fields fields(body, "");
  request.common = parse_common(fields, model, false, test_hooks);
  GenerationRequest& engine = request.common.engine;
  request.prompts = parse_prompts(fields, model, !engine.session.empty());
  if (request.prompts.size() * static_cast<size_t>(engine.n) > kMaxChoices) {
    refuse("n", concat("n times the number of prompts is more than ", kMaxChoices));
  }
  if (!fields.string("suffix").value_or("").empty()) {
    refuse("suffix", "is not possible: the model has no fill-in-the-middle form");
  }
  request.echo = fields.boolean("echo").value_or(false);
  request.logprobs = static_cast<int32_t>(fields.integer("logprobs", 0, kMaxLogprobs).value_or(-1));
  engine.logprobs = request.logprobs;
  if (request.echo && request.logprobs > engine.prompt_logprobs) {
    engine.prompt_logprobs = request.logprobs;
  }
  int64_t max_tokens = request.common.max_tokens.value_or(16);
  if (max_tokens == 0 && !request.echo && engine.prompt_logprobs < 0) {
    refuse("max_tokens", "0 needs echo or prompt_logprobs");
  }
  int64_t fitted = max_tokens;
  for (const auto& prompt : request.prompts) {
    // A session's text stands before it.
    if (prompt.empty() && engine.session.empty()) {
      refuse("prompt", "is empty; give it at least one token");
    }
    fitted = std::min(
        fitted, fit_length(prompt.size(), max_tokens, model, "prompt", request.common.warnings));
  }
  request.common.max_tokens = fitted;
  check_min_tokens(request.common);
  fields.warn_unread(request.common.warnings);
  return request;
}

}  // namespace replayssm::server
