#include "jinja/lexer.h"

#include <cctype>

#include "core/error.h"
#include "core/utf8.h"

namespace replayssm::jinja {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_name(char c) { return is_name_start(c) || is_digit(c); }

std::string one_kind_of_line_end(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      out += '\n';
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, const std::string& name) : source_(std::move(source)), name_(name) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) text();
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(const std::string& what) const { fail(name_, ":", line_, ": ", what); }

  void add(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }

  // Moves on, counting lines.
  void advance(size_t n) {
    for (size_t i = 0; i < n; ++i) line_ += source_[at_ + i] == '\n' ? 1 : 0;
    at_ += n;
    line_start_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  bool looking_at(std::string_view what) const {
    return std::string_view(source_).substr(at_, what.size()) == what;
  }

  // Text up to the next tag, then the tag.
  void text() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 == source_.size()) {
        tag = source_.size();
        break;
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    std::string part = source_.substr(at_, tag - at_);
    if (tag == source_.size()) {
      if (!part.empty()) add(Token::Kind::kText, std::move(part));
      advance(tag - at_);
      return;
    }
    const char kind = source_[tag + 1];
    const char mark = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (mark == '-') {
      while (!part.empty() && is_space(part.back())) part.pop_back();
    } else if (mark != '+' && kind != '{') {
      strip_line_start(part);
    }
    const bool marked = mark == '-' || mark == '+';
    if (!part.empty()) add(Token::Kind::kText, std::move(part));
    advance(tag - at_ + 2 + (marked ? 1 : 0));
    if (kind == '#') {
      comment();
    } else {
      inside(kind == '{');
    }
  }

  // lstrip_blocks: blanks between the line's start and the tag go.
  void strip_line_start(std::string& part) const {
    const size_t line = part.rfind('\n') + 1;  // 0 if there is none
    if (line == 0 && at_ != 0 && !line_start_) return;
    for (size_t i = line; i < part.size(); ++i) {
      if (!is_space(part[i])) return;
    }
    part.resize(line);
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) error("a comment has no end");
    const char mark = end > at_ ? source_[end - 1] : '\0';
    advance(end - at_ + 2);
    after_block(mark);
  }

  // What a tag's end does to the text behind it.
  void after_block(char mark) {
    if (mark == '-') {
      size_t n = 0;
      while (at_ + n < source_.size() && is_space(source_[at_ + n])) ++n;
      advance(n);
    } else if (mark != '+' && at_ < source_.size() && source_[at_] == '\n') {
      advance(1);
    }
  }

  void inside(bool output) {
    add(output ? Token::Kind::kOutputBegin : Token::Kind::kBlockBegin, "");
    const std::string_view end = output ? "}}" : "%}";
    std::string open;  // brackets
    for (;;) {
      while (at_ < source_.size() && is_space(source_[at_])) advance(1);
      if (at_ >= source_.size()) error("a tag has no end");
      const char c = source_[at_];
      if (open.empty()) {
        const bool marked = (c == '-' || c == '+') &&
                            std::string_view(source_).substr(at_ + 1, 2) == end &&
                            !(output && c == '+');
        if (marked || looking_at(end)) {
          add(output ? Token::Kind::kOutputEnd : Token::Kind::kBlockEnd, "");
          advance(end.size() + (marked ? 1 : 0));
          if (!output) {
            after_block(marked ? c : '\0');
          } else if (marked) {
            after_block('-');
          }
          return;
        }
      }
      if (is_name_start(c)) {
        size_t n = 1;
        while (at_ + n < source_.size() && is_name(source_[at_ + n])) ++n;
        add(Token::Kind::kName, source_.substr(at_, n));
        advance(n);
      } else if (is_digit(c)) {
        number();
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        operation(open);
      }
    }
  }

  void number() {
    size_t n = 0;
    std::string digits;
    bool is_float = false;
    const auto take_digits = [&] {
      while (at_ + n < source_.size() && (is_digit(source_[at_ + n]) || source_[at_ + n] == '_')) {
        if (source_[at_ + n] != '_') digits += source_[at_ + n];
        ++n;
      }
    };
    const auto peek = [&](size_t i) { return at_ + i < source_.size() ? source_[at_ + i] : '\0'; };
    take_digits();
    if (peek(n) == '.' && is_digit(peek(n + 1))) {
      is_float = true;
      digits += '.';
      ++n;
      take_digits();
    }
    if ((peek(n) == 'e' || peek(n) == 'E') &&
        (is_digit(peek(n + 1)) ||
         ((peek(n + 1) == '-' || peek(n + 1) == '+') && is_digit(peek(n + 2))))) {
      is_float = true;
      digits += 'e';
      digits += peek(n + 1) == '+' ? '0' : peek(n + 1);
      n += 2;
      take_digits();
    }
    add(is_float ? Token::Kind::kFloat : Token::Kind::kInt, digits);
    advance(n);
  }

  void string(char quote) {
    const int line = line_;
    std::string out;
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\') {
        out += source_[i];
        continue;
      }
      if (++i >= source_.size()) break;
      escape(out, i);
    }
    if (i >= source_.size()) error("a string has no end");
    advance(i - at_ + 1);
    tokens_.push_back({Token::Kind::kString, std::move(out), line});
  }

  // As in Python; i stands on the character behind the backslash and is left on the last one.
  void escape(std::string& out, size_t& i) {
    const char c = source_[i];
    static constexpr std::string_view kNames = "ntrbfav\\'\"0";
    static constexpr std::string_view kValues("\n\t\r\b\f\a\v\\'\"\0", 11);
    if (const size_t at = kNames.find(c); at != std::string_view::npos) {
      out += kValues[at];
      return;
    }
    if (c == '\n') return;
    const size_t n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (n == 0) {
      out += '\\';
      out += c;
      return;
    }
    char32_t point = 0;
    for (size_t k = 1; k <= n; ++k) {
      const char digit = i + k < source_.size() ? source_[i + k] : '\0';
      if (!std::isxdigit(static_cast<unsigned char>(digit))) error("a string has a broken escape");
      const char32_t value = is_digit(digit) ? static_cast<char32_t>(digit - '0')
                                             : static_cast<char32_t>((digit | 0x20) - 'a' + 10);
      point = point * 16 + value;
    }
    if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) {
      error("a string has a broken escape");
    }
    append_utf8(out, point);
    i += n;
  }

  void operation(std::string& open) {
    static constexpr std::string_view kOperators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "<",
        ">",  "=",  ".",  ",",  ":",  "|",  "(", ")", "[", "]", "{", "}"};
    for (const std::string_view op : kOperators) {
      if (!looking_at(op)) continue;
      if (op == "(" || op == "[" || op == "{") {
        open += op[0] == '(' ? ')' : op[0] == '[' ? ']' : '}';
      } else if (op == ")" || op == "]" || op == "}") {
        if (open.empty() || open.back() != op[0]) error(concat("unexpected '", op, "'"));
        open.pop_back();
      }
      add(Token::Kind::kOperator, std::string(op));
      advance(op.size());
      return;
    }
    const auto c = static_cast<unsigned char>(source_[at_]);
    error(c > ' ' && c < 0x7f ? concat("unexpected '", source_[at_], "'")
                              : std::string("unexpected byte"));
  }

  const std::string source_;
  const std::string& name_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  constexpr size_t kMaxBytes = size_t{4} << 20;
  if (source.size() > kMaxBytes) fail(name, ": a template of more than ", kMaxBytes, " bytes");
  return Lexer(one_kind_of_line_end(source), name).run();
}

}  // namespace replayssm::jinja
