#include "server/log_line.h"

#include <algorithm>
#include <cstdio>

#include "core/json.h"

namespace replayssm::server {
namespace {

bool is_plain(const std::string& value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return c > ' ' && c != '"' && c != '=' && c != '\\' && c != 0x7f;
  });
}

}  // namespace

LogLine& LogLine::add(const char* key, const std::string& value) {
  text_ += ' ';
  text_ += key;
  text_ += '=';
  text_ += is_plain(value) ? value : dump_json(Json(value));
  return *this;
}

LogLine& LogLine::add(const char* key, int64_t value) { return add(key, std::to_string(value)); }

LogLine& LogLine::add_milliseconds(const char* key, double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", seconds * 1e3);
  return add(key, std::string(text));
}

}  // namespace replayssm::server
