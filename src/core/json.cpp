#include "core/json.h"

#include "core/error.h"

namespace replayssm {
namespace {

// Brackets outside strings; the library's own functions recurse on the result.
void check_depth(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) fail("not JSON: nests deeper than ", kMaxJsonDepth, " levels");
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace

Json parse_json(std::string_view text) {
  check_depth(text);
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    std::string line = e.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const size_t at = line.find("] "); at != std::string::npos) line.erase(0, at + 2);
    for (char& c : line) {
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    }
    fail("not JSON: ", line);
  }
}

std::string dump_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace replayssm
