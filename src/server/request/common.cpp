#include "server/request/common.h"

#include <algorithm>
#include <charconv>
#include <random>

#include "server/api_error.h"
#include "server/request/unserved.h"

namespace replayssm::server {
namespace {

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxStopIds = 256;
constexpr size_t kMaxBiases = 4096;
constexpr size_t kMaxScriptedSteps = 65536;

void check_model(Fields& fields, const ServedModel& model) {
  const auto name = fields.string("model");
  if (name && !model.has_name(*name)) {
    throw ApiError(404,
                   concat("model: there is no \"", name->substr(0, 128), "\"; this server has \"",
                          model.names.front(), "\""),
                   "model", "model_not_found");
  }
}

ops::SamplerParams parse_sampling(Fields& fields, const SamplingDefaults& defaults) {
  ops::SamplerParams params;
  params.temperature =
      static_cast<float>(fields.number("temperature", 0, 100).value_or(defaults.temperature));
  params.top_k = static_cast<int32_t>(
      std::max<int64_t>(0, fields.integer("top_k", -1, INT32_MAX).value_or(defaults.top_k)));
  const double top_p = fields.number("top_p", 0, 1).value_or(defaults.top_p);
  if (top_p == 0) refuse(fields.path_of("top_p"), "must be greater than 0");
  params.top_p = static_cast<float>(top_p);
  params.min_p = static_cast<float>(fields.number("min_p", 0, 1).value_or(defaults.min_p));
  const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX);
  params.seed = seed ? static_cast<uint64_t>(*seed)
                     : (uint64_t{std::random_device{}()} << 32 | std::random_device{}());
  return params;
}

Penalties parse_penalties(Fields& fields, const ServedModel& model) {
  Penalties penalties;
  penalties.presence = static_cast<float>(fields.number("presence_penalty", -2, 2).value_or(0));
  penalties.frequency = static_cast<float>(fields.number("frequency_penalty", -2, 2).value_or(0));
  auto repetition = fields.number("repetition_penalty", 0.01, 100);
  const auto same = fields.number("repeat_penalty", 0.01, 100);
  if (repetition && same && *repetition != *same) {
    refuse(fields.path_of("repeat_penalty"),
           "is another name of repetition_penalty, which differs");
  }
  if (!repetition) repetition = same;
  penalties.repetition = static_cast<float>(repetition.value_or(model.defaults.repetition_penalty));
  const auto window = fields.integer("repeat_last_n", -1, INT32_MAX).value_or(-1);
  if (window != -1 &&
      (penalties.repetition != 1 || penalties.presence != 0 || penalties.frequency != 0)) {
    refuse(fields.path_of("repeat_last_n"),
           "is not served here; penalties count all tokens: leave it away or send -1");
  }
  const Json* bias = fields.object("logit_bias");
  if (bias == nullptr) return penalties;
  const std::string path = fields.path_of("logit_bias");
  if (bias->size() > kMaxBiases) {
    refuse(path, concat("has ", bias->size(), " entries; at most ", kMaxBiases));
  }
  for (const auto& item : bias->items()) {
    int32_t id = -1;
    const char* end = item.key().data() + item.key().size();
    const auto [at, error] = std::from_chars(item.key().data(), end, id);
    if (error != std::errc{} || at != end || id < 0 || id >= model.vocab) {
      refuse(path, concat("keys must be token ids in 0..", model.vocab - 1));
    }
    const double value = item.value().is_number() ? item.value().get<double>() : 1000;
    if (!(value >= -100 && value <= 100)) refuse(path, "values must be numbers in -100..100");
    penalties.bias.emplace_back(id, static_cast<float>(value));
  }
  return penalties;
}

DraftMode parse_draft(Fields& fields) {
  const std::string name = fields.string("draft").value_or("default");
  if (name == "default") return DraftMode::kDefault;
  if (name == "none") return DraftMode::kNone;
  if (name == "ngram") return DraftMode::kNgram;
  if (name == "model") return DraftMode::kModel;
  if (name == "mtp") return DraftMode::kMtp;
  refuse(fields.path_of("draft"), "must be default, none, ngram, model or mtp");
}

void parse_scripted_drafts(Fields& fields, const ServedModel& model, bool test_hooks,
                           GenerationRequest& request) {
  const Json* steps = fields.array("scripted_drafts", kMaxScriptedSteps);
  if (steps == nullptr) return;
  const std::string path = fields.path_of("scripted_drafts");
  if (!test_hooks) refuse(path, "needs --test-hooks");
  for (const Json& step : *steps) {
    if (!step.is_array() || step.size() > 63) refuse(path, "must be lists of at most 63 ids");
    request.scripted_drafts.push_back(token_ids_of(step, path, model.vocab));
  }
}

}  // namespace

Json parse_body(const HttpRequest& request) {
  try {
    return parse_json(request.body);
  } catch (const Error& e) {
    throw ApiError(400, concat("the body is ", e.what()), "", "invalid_json");
  }
}

std::string session_name(const std::string& name, const std::string& field) {
  const auto good = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  };
  if (name.empty() || name.size() > 64 || name[0] == '.' ||
      !std::all_of(name.begin(), name.end(), good)) {
    refuse(field, "must be 1 to 64 letters, digits, '_', '-' or '.', and not begin with '.'");
  }
  return name;
}

CommonRequest parse_common(Fields& fields, const ServedModel& model, bool chat, bool test_hooks) {
  CommonRequest common;
  refuse_unserved(fields, chat);
  check_model(fields, model);
  GenerationRequest& engine = common.engine;
  engine.sampling = parse_sampling(fields, model.defaults);
  engine.penalties = parse_penalties(fields, model);
  engine.n = static_cast<int32_t>(fields.integer("n", 1, kMaxChoices).value_or(1));
  const auto best_of = fields.integer("best_of", 1, kMaxChoices);
  if (best_of && *best_of != engine.n) refuse("best_of", "must equal n; there is no ranking");
  common.stops = fields.strings("stop", kMaxStops, kMaxStopBytes);
  engine.stop_ids = fields.token_ids("stop_token_ids", kMaxStopIds, model.vocab);
  if (!fields.boolean("ignore_eos").value_or(false)) {
    engine.stop_ids.insert(engine.stop_ids.end(), model.eos_ids.begin(), model.eos_ids.end());
  }
  common.structure = parse_structure(fields, common.warnings);
  common.max_tokens = fields.integer("max_tokens", 0, INT32_MAX);
  common.min_tokens = fields.integer("min_tokens", 0, INT32_MAX).value_or(0);
  if (const auto k = fields.integer("prompt_logprobs", 0, kMaxLogprobs)) {
    engine.prompt_logprobs = static_cast<int32_t>(*k);
  }
  common.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  common.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.object("stream_options")) {
    if (!common.stream) refuse("stream_options", "needs stream");
    Fields inner(*options, fields.path_of("stream_options"));
    common.include_usage = inner.boolean("include_usage").value_or(false);
    inner.warn_unread(common.warnings);
  }
  engine.draft = parse_draft(fields);
  if (const auto k = fields.integer("draft_tokens", 0, 63)) {
    engine.draft_tokens = static_cast<int32_t>(*k);
  }
  if (const auto session = fields.string("session")) {
    engine.session = session_name(*session, fields.path_of("session"));
  }
  parse_scripted_drafts(fields, model, test_hooks, engine);
  if (fields.boolean("include_stop_str_in_output").value_or(false)) {
    refuse("include_stop_str_in_output", "is not possible here");
  }
  return common;
}

void check_min_tokens(const CommonRequest& common) {
  if (common.min_tokens > *common.max_tokens) {
    refuse("min_tokens", concat("is ", common.min_tokens,
                                ", more than max_tokens or what is left: ", *common.max_tokens));
  }
}

int64_t fit_length(size_t prompt_tokens, int64_t max_tokens, const ServedModel& model,
                   const std::string& prompt_field, Warnings& warnings) {
  const auto n = static_cast<int64_t>(prompt_tokens);
  if (n >= model.max_positions) {
    throw ApiError(400,
                   concat(prompt_field, ": has ", n, " tokens; this server takes at most ",
                          model.max_positions - 1, " (--max-positions ", model.max_positions,
                          ", one of them for the answer)"),
                   prompt_field, "context_length_exceeded");
  }
  const int64_t room = model.max_positions - n;
  if (max_tokens > room) {
    warnings.push_back(concat("max_tokens: ", max_tokens, " lowered to ", room, ", what the ",
                              model.max_positions, " positions leave"));
    return room;
  }
  return max_tokens;
}

}  // namespace replayssm::server
