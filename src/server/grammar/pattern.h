// Regular expressions of JSON Schema's "pattern" and "format".
#pragma once

#include <cstdint>
#include <string>

namespace replayssm::server {

// What minLength and maxLength allow, in characters.
struct Lengths {
  int64_t least = 0;
  int64_t most = -1;  // -1: any
};

// The pattern in a form that the grammar compiler enforces to the letter. A string is enforced that
// matches it from end to end, for ECMAScript as for Python, and holds no character that JSON writes
// as an escape. Throws Error on what that form cannot say: look-around, back references, word
// boundaries, anchors inside, lengths that the pattern neither implies nor can take over.
std::string enforced_pattern(const std::string& pattern, const Lengths& lengths = {});

// The same for a format of kind FormatKind::kEnforced.
std::string enforced_format(const std::string& format, const Lengths& lengths = {});

}  // namespace replayssm::server
