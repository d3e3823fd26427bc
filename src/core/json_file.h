// The JSON files of a model folder, as Python's tools write them: config.json, tokenizer.json,
// generation_config.json, an index of shards.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace replayssm {

// Keys are sorted: a vocabulary has hundreds of thousands of them.
using FileJson = nlohmann::json;

inline constexpr size_t kMaxJsonFileBytes = size_t{64} << 20;

// Beside JSON proper, NaN, Infinity and -Infinity are numbers, bare as Python's json module writes
// them or as transformers does, {"__float__": "Infinity"}. Throws Error, one line that begins with
// `path`, on what is not an object of JSON in UTF-8 or nests deeper than kMaxJsonDepth.
FileJson parse_json_file(std::string_view text, const std::string& path);

// The same from a file of at most `max_bytes`.
FileJson read_json_file(const std::string& path, size_t max_bytes = kMaxJsonFileBytes);

}  // namespace replayssm
