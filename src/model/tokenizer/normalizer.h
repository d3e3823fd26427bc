// Unicode normalization of the text between added tokens.
#pragma once

#include <string>
#include <string_view>

namespace replayssm::model {

enum class Normalization { kNone, kNfc };

// The normalized form of valid UTF-8: `text` itself where nothing changes, else a view of `buffer`.
// NFC is that of Unicode 9.0, which the `tokenizers` library applies: later code points neither
// compose nor reorder.
std::string_view normalize(Normalization form, std::string_view text, std::string& buffer);

// White space and word characters as the `\s` and `\w` of Unicode regular expressions (UTS 18)
// have them (of Unicode 16); the flags of added tokens are defined with these.
bool is_unicode_space(char32_t c);
bool is_unicode_word(char32_t c);

}  // namespace replayssm::model
