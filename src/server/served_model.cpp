#include "server/served_model.h"

#include <algorithm>
#include <filesystem>

#include "core/text_file.h"
#include "server/api_error.h"
#include "server/chat/chat_template.h"
#include "server/request/fields.h"

namespace replayssm::server {
namespace {

SamplingDefaults load_defaults(const std::string& path, std::vector<int32_t>& eos_ids,
                               int64_t vocab) {
  SamplingDefaults defaults;
  if (!std::filesystem::exists(path)) return defaults;
  try {
    const Json json = parse_json(read_text_file(path, size_t{1} << 20));
    Fields fields(json, "");
    defaults.temperature = fields.number("temperature", 0, 100).value_or(defaults.temperature);
    defaults.top_k =
        static_cast<int32_t>(fields.integer("top_k", 0, INT32_MAX).value_or(defaults.top_k));
    defaults.top_p = fields.number("top_p", 1e-6, 1).value_or(defaults.top_p);
    defaults.min_p = fields.number("min_p", 0, 1).value_or(defaults.min_p);
    defaults.repetition_penalty =
        fields.number("repetition_penalty", 0.01, 100).value_or(defaults.repetition_penalty);
    if (!fields.boolean("do_sample").value_or(true)) defaults.temperature = 0;
    const Json* eos = fields.find("eos_token_id");
    if (eos == nullptr) return defaults;
    const Json list = eos->is_array() ? *eos : Json::array({*eos});
    for (const int32_t id : token_ids_of(list, "eos_token_id", vocab)) {
      if (std::find(eos_ids.begin(), eos_ids.end(), id) == eos_ids.end()) eos_ids.push_back(id);
    }
  } catch (const Error& e) {
    const std::string what = e.what();
    fail(what.find(path) == std::string::npos ? path + ": " : "", what);
  }
  return defaults;
}

}  // namespace

std::vector<int32_t> ServedModel::encode(const std::string& text, const std::string& field) const {
  constexpr size_t kNormalised = 4;  // a normaliser may shorten a text, to a third at worst
  const size_t most = kNormalised * max_token_bytes * static_cast<size_t>(max_positions);
  if (text.size() > most) {
    throw ApiError(400,
                   concat(field, ": has ", text.size(), " bytes, more than ", most,
                          ", the most that --max-positions ", max_positions, " can hold"),
                   field, "context_length_exceeded");
  }
  try {
    return tokenizer->encode(text);
  } catch (const Error& e) {
    refuse(field, e.what());
  }
}

ServedModel load_served_model(const std::string& folder, const std::string& template_file,
                              int64_t vocab, int64_t max_positions,
                              const std::vector<int32_t>& eos_ids) {
  ServedModel model;
  const auto path = std::filesystem::weakly_canonical(folder);
  model.names = {path.has_filename() ? path.filename().string()
                                     : path.parent_path().filename().string()};
  model.vocab = vocab;
  model.max_positions = max_positions;
  model.eos_ids = eos_ids;
  model.tokenizer =
      std::make_shared<const model::Tokenizer>(model::Tokenizer::load(folder + "/tokenizer.json"));
  for (int32_t id = 0; id < model.tokenizer->vocab_size(); ++id) {
    model.max_token_bytes =
        std::max(model.max_token_bytes, model.tokenizer->token_bytes(id).size());
  }
  model.defaults = load_defaults(folder + "/generation_config.json", model.eos_ids, vocab);
  model.chat_template = load_chat_template(folder, template_file);
  return model;
}

}  // namespace replayssm::server
