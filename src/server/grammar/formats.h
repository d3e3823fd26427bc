// The formats of JSON Schema's strings.
#pragma once

#include <string>

namespace replayssm::server {

// What a validator makes of a format.
enum class FormatKind {
  kEnforced,  // by format_pattern()
  kRefused,   // JSON Schema defines it, and no pattern of ours does
  kNote,      // a name that JSON Schema does not define: every string is valid
};

FormatKind kind_of_format(const std::string& format);

// A regular expression that only valid strings match; empty if there is none. Rare forms that not
// every validator accepts are left out: IP literals in URIs, quoted local parts of emails.
// `bounded`: there is a longest string that matches; it costs some time where there is none else.
std::string format_pattern(const std::string& format, bool bounded = false);

}  // namespace replayssm::server
