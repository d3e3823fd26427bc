// What the server knows of the model that it serves.
#pragma once

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
  std::string name;
  int64_t vocab = 0;  // of the logits: ids are below it
  int64_t max_positions = 0;
  std::vector<int32_t> eos_ids;  // end a choice, unless a request says ignore_eos
  SamplingDefaults defaults;
  std::shared_ptr<const model::Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: none
};

// Reads tokenizer, generation_config.json and the chat template of a model folder;
// `template_file`, if not empty, takes the latter's place. Throws Error naming the file.
ServedModel load_served_model(const std::string& folder, const std::string& template_file,
                              int64_t vocab, int64_t max_positions,
                              const std::vector<int32_t>& eos_ids);

}  // namespace replayssm::server
