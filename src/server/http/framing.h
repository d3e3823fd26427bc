// Where a request ends. Proxies and servers that read the same bytes as different requests are how
// requests are smuggled, so that all which RFC 9112 lets a reader repair is refused here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace replayssm::server {

struct Framing {
  std::string problem;  // why the head is refused; empty if it is not
  bool chunked = false;
  uint64_t content_length = 0;
};

// The bytes of a head, its empty line included, once they are all there; 0 before.
size_t head_bytes(std::string_view bytes);

// True if no further bytes can make a head of these: a line feed without its carriage return, or a
// byte that no head holds.
bool breaks_head(std::string_view bytes);

// Of a whole head.
Framing check_head(std::string_view head);

// The text with %XX decoded; nothing if one is malformed or the text decodes to a zero byte.
std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace replayssm::server
