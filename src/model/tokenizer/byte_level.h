// The byte alphabet of byte-level BPE (from GPT-2): each byte has one printable character, in which
// the token strings of a vocabulary are written. Printable Latin-1 stands for itself; the 68 other
// bytes take U+0100 to U+0143 in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace replayssm::model {

// The character of `byte`, in UTF-8 (1 or 2 bytes).
const std::string& byte_char(uint8_t byte);

// Rewrites raw bytes as their characters.
std::string to_byte_chars(std::string_view bytes);

// The bytes that a string of byte characters stands for; none if it holds any other character.
std::optional<std::string> from_byte_chars(std::string_view text);

}  // namespace replayssm::model
