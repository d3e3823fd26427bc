#include "server/http/sse.h"

#include <utility>

#include "core/error.h"

namespace replayssm::server {

std::vector<std::string> SseParser::push(std::string_view bytes) {
  std::vector<std::string> events;
  while (!bytes.empty()) {
    if (std::exchange(after_return_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    const bool whole = end != std::string_view::npos;
    line_ += bytes.substr(0, end);
    if (line_.size() + data_.size() > most_bytes_) {
      fail("a server-sent event has more than ", most_bytes_, " bytes");
    }
    if (!whole) break;
    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    take_line(events);
    line_.clear();
  }
  return events;
}

void SseParser::take_line(std::vector<std::string>& events) {
  std::string_view line = line_;
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (!std::exchange(begun_, true) && line.starts_with(kByteOrderMark)) {
    line.remove_prefix(kByteOrderMark.size());
  }
  if (line.empty()) {
    if (std::exchange(has_data_, false)) events.push_back(std::exchange(data_, {}));
    return;
  }
  const size_t colon = line.find(':');
  if (line.substr(0, colon) != "data") return;
  line.remove_prefix(colon == std::string_view::npos ? line.size() : colon + 1);
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (std::exchange(has_data_, true)) data_ += '\n';
  data_ += line;
}

}  // namespace replayssm::server
