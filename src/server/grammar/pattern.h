// Regular expressions of JSON Schema's "pattern" and "format".
#pragma once

#include <cstdint>
#include <string>

namespace replayssm::server {

inline constexpr size_t kMaxPatternBytes = 1024;

// What minLength and maxLength allow, in characters.
struct Lengths {
  int64_t least = 0;
  int64_t most = -1;  // -1: any
};

struct EnforcedPattern {
  std::string text;
  int64_t size = 0;  // in characters, its repetitions written out: the states of its automaton
};

// How a string is written. kQuoted: as JSON writes it; it holds no character that needs an escape.
// kBare: as it is, between marks, where blanks at its ends are no part of it; it has none there,
// and no '<'.
enum class StringForm { kQuoted, kBare };

// The pattern in a form that the grammar compiler enforces to the letter. A string is enforced that
// matches it from end to end, for ECMAScript as for Python, and that `form` can write. Throws Error
// on what that form cannot say: look-around, back references, word boundaries, anchors inside,
// lengths that the pattern neither implies nor can take over.
EnforcedPattern enforced_pattern(const std::string& pattern, const Lengths& lengths = {},
                                 StringForm form = StringForm::kQuoted);

// A regular expression that a whole answer matches; it may hold every character.
EnforcedPattern enforced_text_pattern(const std::string& pattern);

// The same for a format of kind FormatKind::kEnforced.
EnforcedPattern enforced_format(const std::string& format, const Lengths& lengths = {},
                                StringForm form = StringForm::kQuoted);

// A bare string of these lengths.
std::string bare_string(const Lengths& lengths);

}  // namespace replayssm::server
