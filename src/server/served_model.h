// What the server knows of the model that it serves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/generation_config.h"
#include "model/tokenizer/tokenizer.h"

namespace replayssm::server {

class ChatTemplate;

struct ServedModel {
  std::vector<std::string> names;  // that it is asked for by; answers bear the first
  int64_t vocab = 0;               // of the logits: ids are below it
  int64_t max_positions = 0;
  std::vector<int32_t> eos_ids;  // end a choice, unless a request says ignore_eos
  SamplingDefaults defaults;     // what a request that names none gets
  std::shared_ptr<const model::Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: none
  size_t max_token_bytes = 1;                         // of the vocabulary

  // The ids of a text; `special`: with the tokenizer's begin and end marks. Throws ApiError naming
  // the field: 400 if the tokenizer refuses it, and before it begins if so many bytes cannot be as
  // few tokens as there are positions.
  std::vector<int32_t> encode(const std::string& text, bool special,
                              const std::string& field) const;
  bool has_name(const std::string& name) const {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
};

// Reads tokenizer, generation_config.json and the chat template of a model (model_source.h);
// `template_file`, if not empty, takes the latter's place. `eos_ids` are those that config.json and
// generation_config.json name; the tokenizer's and the template's end of a turn are added. Throws
// Error naming the file.
ServedModel load_served_model(const std::string& path, const std::string& template_file,
                              int64_t vocab, int64_t max_positions,
                              const std::vector<int32_t>& eos_ids);

}  // namespace replayssm::server
