#include "server/chat/call_text.h"

namespace replayssm::server {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

}  // namespace

size_t partial_mark(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

size_t trimmed_end(std::string_view text) { return text.find_last_not_of(kBlanks) + 1; }

std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  return text.substr(begin, std::max(begin, trimmed_end(text)) - begin);
}

const Json* find_tool(const Json& tools, std::string_view name) {
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    if (function.at("name").get_ref<const std::string&>() == name) return &function;
  }
  return nullptr;
}

void TextReader::blanks() { at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size()); }

Found TextReader::skip(std::string_view mark) {
  const std::string_view text = rest();
  if (text.starts_with(mark)) {
    at_ += mark.size();
    return Found::kYes;
  }
  return is_open() && mark.starts_with(text) ? Found::kPartial : Found::kNo;
}

TextReader::Part TextReader::until(std::string_view mark, size_t most) {
  const std::string_view text = rest();
  const size_t n = text.substr(0, most + mark.size()).find(mark);
  if (n == std::string_view::npos) return {{}, is_open() && text.size() < most + mark.size()};
  at_ += n + mark.size();
  return {text.substr(0, n), false};
}

}  // namespace replayssm::server
