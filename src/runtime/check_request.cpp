#include <cmath>

#include "core/error.h"
#include "runtime/engine_impl.h"

namespace replayssm {
namespace {

constexpr int64_t kMaxLogprobs = 64;
constexpr size_t kMaxIds = 4096;  // stop ids, biases

Refusal invalid(const char* field, std::string message) {
  return {Refusal::Kind::kInvalid, field, std::move(message)};
}

std::optional<Refusal> check_ids(const GenerationRequest& r, int64_t vocab) {
  const auto outside = [&](int32_t id) { return id < 0 || id >= vocab; };
  const auto message = [&](int32_t id) { return concat("id ", id, " is not in [0, ", vocab, ")"); };
  for (const int32_t id : r.prompt) {
    if (outside(id)) return invalid("prompt", message(id));
  }
  if (r.stop_ids.size() > kMaxIds) {
    return invalid("stop_ids", concat(r.stop_ids.size(), " ids; at most ", kMaxIds));
  }
  for (const int32_t id : r.stop_ids) {
    if (outside(id)) return invalid("stop_ids", message(id));
  }
  if (r.penalties.bias.size() > kMaxIds) {
    return invalid("bias", concat(r.penalties.bias.size(), " ids; at most ", kMaxIds));
  }
  for (const auto& [id, bias] : r.penalties.bias) {
    if (outside(id)) return invalid("bias", message(id));
    if (!std::isfinite(bias)) return invalid("bias", concat("of id ", id, " is not finite"));
  }
  for (const auto& step : r.scripted_drafts) {
    for (const int32_t id : step) {
      if (outside(id)) return invalid("scripted_drafts", message(id));
    }
  }
  return std::nullopt;
}

std::optional<Refusal> check_numbers(const GenerationRequest& r) {
  const ops::SamplerParams& s = r.sampling;
  const Penalties& p = r.penalties;
  // A comparison with NaN is false.
  if (!(s.temperature >= 0 && s.temperature <= 100)) {
    return invalid("temperature", "must be in [0, 100]");
  }
  if (s.top_k < 0) return invalid("top_k", "must not be negative");
  if (!(s.top_p > 0 && s.top_p <= 1)) return invalid("top_p", "must be in (0, 1]");
  if (!(s.min_p >= 0 && s.min_p <= 1)) return invalid("min_p", "must be in [0, 1]");
  if (!(p.repetition > 0 && p.repetition <= 100)) {
    return invalid("repetition", "must be in (0, 100]");
  }
  if (!(std::abs(p.presence) <= 100)) return invalid("presence", "must be in [-100, 100]");
  if (!(std::abs(p.frequency) <= 100)) return invalid("frequency", "must be in [-100, 100]");
  for (const auto& [name, k] :
       {std::pair{"logprobs", r.logprobs}, {"prompt_logprobs", r.prompt_logprobs}}) {
    if (k < -1 || k > kMaxLogprobs) {
      return invalid(name, concat(k, " is not in [-1, ", kMaxLogprobs, "]"));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> check_request(const GenerationRequest& r, const Model& model,
                                     const EngineOptions& options, int32_t max_sequences) {
  if (r.prompt.empty()) return invalid("prompt", "is empty; it needs at least one token");
  if (std::ssize(r.prompt) + 1 > options.max_positions) {
    return invalid("prompt", concat("has ", r.prompt.size(), " tokens; the context of ",
                                    options.max_positions, " leaves no room for text"));
  }
  if (r.max_new_tokens < 0) return invalid("max_new_tokens", "must not be negative");
  if (r.n < 1 || r.n > max_sequences) {
    return invalid("n", concat(r.n, " choices; from 1 to ", max_sequences, " run at once"));
  }
  if (auto refusal = check_ids(r, model.spec().vocab)) return refusal;
  if (auto refusal = check_numbers(r)) return refusal;
  const int32_t most_drafts = model.options().max_window - 1;
  if (r.draft_tokens < -1 || r.draft_tokens > most_drafts) {
    return invalid("draft_tokens", concat(r.draft_tokens, " is not in [-1, ", most_drafts, "]"));
  }
  if (r.draft == DraftMode::kModel && options.draft_model == nullptr) {
    return invalid("draft", "the engine has no draft model");
  }
  if (r.draft == DraftMode::kMtp && !model.spec().mtp) {
    return invalid("draft", "the engine runs without the model's drafting head");
  }
  if (!r.scripted_drafts.empty() && !options.test_hooks) {
    return invalid("scripted_drafts", "need test hooks");
  }
  return std::nullopt;
}

}  // namespace replayssm
