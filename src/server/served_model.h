// What the server knows of the model that it serves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace replayssm::server {

class ChatTemplate;

// What a request that names none gets: generation_config.json's, else these.
struct SamplingDefaults {
  double temperature = 1.0;
  int32_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
};

struct ServedModel {
  std::vector<std::string> names;  // that it is asked for by; answers bear the first
  int64_t vocab = 0;               // of the logits: ids are below it
  int64_t max_positions = 0;
  std::vector<int32_t> eos_ids;  // end a choice, unless a request says ignore_eos
  SamplingDefaults defaults;
  std::shared_ptr<const model::Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: none
  size_t max_token_bytes = 1;                         // of the vocabulary

  // The ids of a text. Throws ApiError naming the field: 400 if the tokenizer refuses it, and
  // before it begins if so many bytes cannot be as few tokens as there are positions.
  std::vector<int32_t> encode(const std::string& text, const std::string& field) const;
  bool has_name(const std::string& name) const {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
};

// Reads tokenizer, generation_config.json and the chat template of a model folder;
// `template_file`, if not empty, takes the latter's place. Throws Error naming the file.
ServedModel load_served_model(const std::string& folder, const std::string& template_file,
                              int64_t vocab, int64_t max_positions,
                              const std::vector<int32_t>& eos_ids);

}  // namespace replayssm::server
