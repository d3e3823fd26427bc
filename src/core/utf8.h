// UTF-8 as bytes from outside arrive: valid, broken or cut short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace replayssm {

enum class Utf8Kind {
  kValid,
  kInvalid,    // a maximal ill-formed subpart: to be replaced by one U+FFFD
  kTruncated,  // well-formed so far, but the text ends inside the sequence
};

struct Utf8Unit {
  Utf8Kind kind;
  uint8_t n_bytes;  // 1 to 4
};

// The unit that starts at text[pos]; pos < text.size(). Splits ill-formed input as the Unicode
// standard recommends (and Python's errors="replace" and Rust's from_utf8_lossy do).
Utf8Unit utf8_unit(std::string_view text, size_t pos);

// The code point of a valid unit.
char32_t utf8_code_point(std::string_view unit);

void append_utf8(std::string& out, char32_t code_point);

bool is_ascii(std::string_view text);
bool is_valid_utf8(std::string_view text);

// Copies `text` with each ill-formed subpart, and a truncated end, replaced by U+FFFD.
std::string to_valid_utf8(std::string_view text);

// Makes valid UTF-8 of a byte stream that comes in pieces cut anywhere: push() returns what is
// certain, holding back at most 3 bytes of an unfinished sequence; finish() gives the rest. The
// concatenation equals to_valid_utf8() of the whole stream.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace replayssm
