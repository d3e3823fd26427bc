// JSON as it comes from outside: objects keep the order in which their fields came.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace replayssm {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 128;
inline constexpr size_t kMaxJsonKeys = size_t{1} << 14;    // of one object
inline constexpr size_t kMaxJsonValues = size_t{1} << 21;  // of one text; a value takes 16 to 100 B

// Takes time linear in the text (and n log n in the keys of one object). Of a repeated key the
// last value counts. Throws Error, one line, on what is not JSON in UTF-8, nests deeper than
// kMaxJsonDepth, or has more keys or values than the limits: those are counted before any value is
// made.
Json parse_json(std::string_view text);

// One line; never throws: ill-formed UTF-8 comes out as U+FFFD.
std::string dump_json(const Json& value);

}  // namespace replayssm
