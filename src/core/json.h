// JSON as it comes from outside: objects keep the order in which their fields came.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace replayssm {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 128;

// Throws Error, one line, on what is not JSON in UTF-8 or nests deeper than kMaxJsonDepth.
Json parse_json(std::string_view text);

// One line; never throws: ill-formed UTF-8 comes out as U+FFFD.
std::string dump_json(const Json& value);

}  // namespace replayssm
