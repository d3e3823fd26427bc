#include "server/chat/loose_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

#include "core/error.h"

namespace replayssm::server {
namespace {

using State = LooseValue::State;

constexpr std::string_view kBlanks = " \t\r\n";

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

class Reader {
 public:
  Reader(std::string_view text, TextEnd end) : text_(text), end_(end) {}

  State value(Json& out, int depth) {
    blanks();
    if (at_end()) return out_of_text();
    const char c = text_[at_];
    if (c == '{') return depth < kMaxJsonDepth ? object(out, depth) : State::kBad;
    if (c == '[') return depth < kMaxJsonDepth ? array(out, depth) : State::kBad;
    if (c == '"' || c == '\'') {
      std::string text;
      const State state = string(text);
      out = std::move(text);
      return state;
    }
    return word(out);
  }

  size_t at() const { return at_; }

 private:
  bool at_end() const { return at_ == text_.size(); }
  State out_of_text() const { return end_ == TextEnd::kMore ? State::kOpen : State::kBad; }
  void blanks() { at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size()); }

  // Behind a value in brackets: true in `closed` at their end, else there is a comma.
  State next(char closing, bool& closed) {
    blanks();
    closed = true;
    if (at_end()) return end_ == TextEnd::kEnded ? State::kValue : out_of_text();
    const char c = text_[at_];
    if (c == '<') return State::kValue;
    ++at_;
    if (c == closing) return State::kValue;
    closed = false;
    return c == ',' ? State::kValue : State::kBad;
  }

  // Before a value in brackets: whether they are closed there.
  State closes(char closing, bool& closed) {
    blanks();
    if (at_end()) return out_of_text();
    closed = text_[at_] == closing;
    if (closed) ++at_;
    return State::kValue;
  }

  State object(Json& out, int depth) {
    ++at_;
    out = Json::object();
    for (bool closed = false;;) {
      State state = closes('}', closed);
      if (state != State::kValue || closed) return state;
      std::string key;
      if (text_[at_] != '"' && text_[at_] != '\'') return State::kBad;
      if (state = string(key); state != State::kValue) return state;
      blanks();
      if (at_end()) return out_of_text();
      if (text_[at_++] != ':') return State::kBad;
      Json item;
      if (state = value(item, depth + 1); state != State::kValue) return state;
      if (out.size() >= kMaxJsonKeys) return State::kBad;
      out[key] = std::move(item);
      state = next('}', closed);
      if (state != State::kValue || closed) return state;
    }
  }

  State array(Json& out, int depth) {
    ++at_;
    out = Json::array();
    for (bool closed = false;;) {
      State state = closes(']', closed);
      if (state != State::kValue || closed) return state;
      Json item;
      if (state = value(item, depth + 1); state != State::kValue) return state;
      out.push_back(std::move(item));
      state = next(']', closed);
      if (state != State::kValue || closed) return state;
    }
  }

  // Four hexadecimal digits; -1 if there are none.
  int32_t hex(size_t at) const {
    int32_t code = 0;
    if (at + 4 > text_.size()) return -1;
    const char* last = text_.data() + at + 4;
    const auto [stop, error] = std::from_chars(text_.data() + at, last, code, 16);
    return error == std::errc{} && stop == last && code >= 0 ? code : -1;
  }

  State escape(std::string& out) {
    constexpr std::array<std::pair<char, char>, 9> kEscapes = {{{'n', '\n'},
                                                                {'t', '\t'},
                                                                {'r', '\r'},
                                                                {'b', '\b'},
                                                                {'f', '\f'},
                                                                {'/', '/'},
                                                                {'\\', '\\'},
                                                                {'"', '"'},
                                                                {'\'', '\''}}};
    if (at_ + 1 >= text_.size()) return out_of_text();
    const char c = text_[at_ + 1];
    if (c == 'u') {
      // A pair of surrogates has twelve bytes.
      if (end_ == TextEnd::kMore && text_.size() - at_ < 12) return State::kOpen;
      int32_t code = hex(at_ + 2);
      size_t length = 6;
      if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_ + 6, 2) == "\\u") {
        const int32_t low = hex(at_ + 8);
        if (low >= 0xdc00 && low < 0xe000) {
          code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
          length = 12;
        }
      }
      if (code < 0 || (code >= 0xd800 && code < 0xe000)) return State::kBad;
      append_utf8(out, static_cast<uint32_t>(code));
      at_ += length;
      return State::kValue;
    }
    const auto* found = std::find_if(kEscapes.begin(), kEscapes.end(),
                                     [c](const auto& escape) { return escape.first == c; });
    if (found == kEscapes.end()) out += '\\';
    out += found == kEscapes.end() ? c : found->second;
    at_ += 2;
    return State::kValue;
  }

  State string(std::string& out) {
    const char quote = text_[at_++];
    const char ends[] = {quote, '\\', '\0'};
    for (;;) {
      const size_t end = text_.find_first_of(ends, at_, 2);
      out += text_.substr(at_, end - at_);
      at_ = std::min(end, text_.size());
      if (at_end()) return out_of_text();
      if (text_[at_] == quote) {
        ++at_;
        return State::kValue;
      }
      if (const State state = escape(out); state != State::kValue) return state;
    }
  }

  // A number, true, false, null and what Python writes for them.
  State word(Json& out) {
    const auto part = [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '+' || c == '-' || c == '.';
    };
    size_t end = at_;
    while (end < text_.size() && part(static_cast<unsigned char>(text_[end]))) ++end;
    if (end == text_.size() && end_ == TextEnd::kMore) return State::kOpen;
    std::string_view text = text_.substr(at_, end - at_);
    if (text == "True") text = "true";
    if (text == "False") text = "false";
    if (text == "None") text = "null";
    try {
      out = parse_json(text);
    } catch (const Error&) {
      return State::kBad;
    }
    at_ = end;
    return State::kValue;
  }

  const std::string_view text_;
  const TextEnd end_;
  size_t at_ = 0;
};

}  // namespace

LooseValue read_loose(std::string_view text, TextEnd end) {
  Reader reader(text, end);
  LooseValue out;
  out.state = reader.value(out.value, 0);
  out.length = reader.at();
  return out;
}

}  // namespace replayssm::server
