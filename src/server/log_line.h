// A line of the log in logfmt: key=value pairs, quoted where needed.
#pragma once

#include <string>

namespace replayssm::server {

class LogLine {
 public:
  explicit LogLine(const char* kind) : text_(kind) {}
  LogLine& add(const char* key, const std::string& value);
  LogLine& add(const char* key, int64_t value);
  // seconds, written in milliseconds
  LogLine& add_milliseconds(const char* key, double seconds);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace replayssm::server
