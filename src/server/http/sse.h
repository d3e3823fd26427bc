// Reads server-sent events, in whatever pieces they come.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace replayssm::server {

class SseParser {
 public:
  // An event of more bytes than that is refused.
  explicit SseParser(size_t most_bytes = size_t{64} << 20) : most_bytes_(most_bytes) {}

  // The data of each event that these bytes complete: its data lines, joined by line feeds. Other
  // fields and comments are passed over. Throws Error.
  std::vector<std::string> push(std::string_view bytes);

 private:
  void take_line(std::vector<std::string>& events);

  size_t most_bytes_;
  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_return_ = false;  // a line feed belongs to it
  bool begun_ = false;
};

}  // namespace replayssm::server
