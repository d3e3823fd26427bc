#include "server/served_model.h"

#include <algorithm>
#include <optional>

#include "model/model_folder.h"
#include "model/model_source.h"
#include "model/tokenizer/special_tokens.h"
#include "server/api_error.h"
#include "server/chat/chat_template.h"

namespace replayssm::server {
namespace {

// The special token with which `text` begins, white space aside.
std::optional<int32_t> leading_special(const std::string& text, const model::Tokenizer& tokenizer) {
  const size_t at = text.find_first_not_of(" \t\r\n");
  if (at == text.npos) return std::nullopt;
  const std::vector<int32_t> ids = tokenizer.encode(std::string_view(text).substr(at));
  if (ids.empty() || !tokenizer.is_special(ids.front())) return std::nullopt;
  return ids.front();
}

}  // namespace

std::vector<int32_t> ServedModel::encode(const std::string& text, bool special,
                                         const std::string& field) const {
  constexpr size_t kNormalised = 4;  // a normaliser may shorten a text, to a third at worst
  const size_t most = kNormalised * max_token_bytes * static_cast<size_t>(max_positions);
  if (text.size() > most) {
    throw ApiError(400,
                   concat(field, ": has ", text.size(), " bytes, more than ", most,
                          ", the most that --max-positions ", max_positions, " can hold"),
                   field, "context_length_exceeded");
  }
  try {
    return special ? tokenizer->encode_prompt(text) : tokenizer->encode(text);
  } catch (const Error& e) {
    refuse(field, e.what());
  }
}

ServedModel load_served_model(const std::string& path, const std::string& template_file,
                              int64_t vocab, int64_t max_positions,
                              const std::vector<int32_t>& eos_ids) {
  ServedModel model;
  model.names = {model_name(path)};
  model.vocab = vocab;
  model.max_positions = max_positions;
  model.eos_ids = eos_ids;
  model.tokenizer = std::make_shared<const model::Tokenizer>(read_tokenizer(path));
  for (int32_t id = 0; id < model.tokenizer->vocab_size(); ++id) {
    model.max_token_bytes =
        std::max(model.max_token_bytes, model.tokenizer->token_bytes(id).size());
  }
  model.defaults = read_sampling_defaults(path);
  model.chat_template = load_chat_template(path, template_file, read_marks(path, *model.tokenizer));
  add_end_tokens(path, *model.tokenizer, vocab, model.eos_ids);
  if (model.chat_template != nullptr) {
    const auto end = leading_special(model.chat_template->turn_end(), *model.tokenizer);
    if (end && *end < vocab) model::add_id(*end, model.eos_ids);
  }
  return model;
}

}  // namespace replayssm::server
