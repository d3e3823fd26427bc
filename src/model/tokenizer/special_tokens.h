// The tokens that a folder's configuration files name by their text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace replayssm::model {

// Empty where no file names one.
struct SpecialTokens {
  std::string bos;
  std::string eos;
};

// By tokenizer_config.json, else special_tokens_map.json: a string, or an object that holds one.
SpecialTokens read_special_tokens(const std::string& folder);

// Adds the end tokens that either file names to `ids`, if they are not there and below `vocab`.
void add_named_end_tokens(const std::string& folder, const Tokenizer& tokenizer, int64_t vocab,
                          std::vector<int32_t>& ids);

// Adds `id` to `ids` if it is not there.
void add_id(int32_t id, std::vector<int32_t>& ids);

}  // namespace replayssm::model
