// Reading of a call's text, of which more may come.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "server/chat/loose_value.h"

namespace replayssm::server {

inline constexpr size_t kMaxNameBytes = 256;  // of a function or a parameter

// Bytes at the text's end that `mark` may begin with.
size_t partial_mark(std::string_view text, std::string_view mark);
std::string_view trimmed(std::string_view text);
// The text's length without the blanks at its end.
size_t trimmed_end(std::string_view text);
// The function's entry in OpenAI's list; null if there is none of this name.
const Json* find_tool(const Json& tools, std::string_view name);

enum class Found { kYes, kNo, kPartial };

class TextReader {
 public:
  TextReader(std::string_view text, TextEnd end) : text_(text), end_(end) {}

  size_t at() const { return at_; }
  std::string_view rest() const { return text_.substr(at_); }
  TextEnd end() const { return end_; }
  bool at_end() const { return at_ == text_.size(); }
  bool is_open() const { return end_ == TextEnd::kMore; }
  void advance(size_t n) { at_ += n; }
  void blanks();
  // Moves past `mark` if the text goes on so. kPartial: it may, when more comes.
  Found skip(std::string_view mark);

  struct Part {
    std::optional<std::string_view> text;
    bool open = false;  // none yet: more text is needed to tell
  };
  // Moves past the next `mark`, which begins within `most` bytes: what stands before it.
  Part until(std::string_view mark, size_t most);

 private:
  std::string_view text_;
  TextEnd end_;
  size_t at_ = 0;
};

}  // namespace replayssm::server
