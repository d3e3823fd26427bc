// The regular expressions of tokenizer.json, written for Oniguruma (Ruby syntax, Unicode 16),
// rewritten for PCRE2 without UCP.
#pragma once

#include <string>
#include <string_view>

namespace replayssm::model {

// The PCRE2 pattern that matches what `pattern` matches in Oniguruma. Throws Error, beginning with
// `where`, at any construct that the two read differently and that is not rewritten here.
std::string pcre2_pattern(std::string_view pattern, const std::string& where);

}  // namespace replayssm::model
