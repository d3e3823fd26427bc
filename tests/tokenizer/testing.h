// Fixtures of the tokenizer tests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace replayssm::model::testing {

// The contents of tests/data/tokenizer/<name>.xz, decompressed.
std::string read_xz(const std::string& name);

// The tokens in a fixture of 32-bit little-endian numbers.
std::vector<int32_t> read_ids(const std::string& name);

// The tokenizer of Qwen3, loaded once.
const Tokenizer& qwen3();

// The tokenizer of the demo models, loaded once; in a hundredth of the time that Qwen3's takes.
const Tokenizer& demo();

// A small tokenizer.json: the 256 bytes (ids 0 to 255) and the merges "a b", "ab c", "Ġ a".
nlohmann::json small_json();

Tokenizer small(const nlohmann::json& json);

}  // namespace replayssm::model::testing
