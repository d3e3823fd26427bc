#include "model/tokenizer/split_pattern.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "core/error.h"
#include "core/utf8.h"
#include "model/tokenizer/unicode_additions.h"

namespace replayssm::model {
namespace {

// PCRE2's `\s` without UCP knows no Unicode space, with UCP it takes U+180E too; neither is the
// Unicode property White_Space, which Oniguruma matches.
constexpr std::string_view kSpace =
    R"(\t-\r\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF})"
    R"(\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";

constexpr std::array<std::string_view, 8> kGroups = {
    "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};

class Rewriter {
 public:
  Rewriter(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {}

  std::string run() {
    while (pos_ < in_.size()) item();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(where_, ": ", what, " at byte ", pos_, " of the pattern is not supported");
  }

  bool at(std::string_view text) const { return in_.substr(pos_).starts_with(text); }

  void copy(size_t n_bytes) {
    out_ += in_.substr(pos_, n_bytes);
    pos_ += n_bytes;
  }

  // Without regard to case, Oniguruma matches some letters with strings of others ("ss" with
  // U+00DF) and PCRE2 takes \p{Lu} for all cased letters; what is plain ASCII stays the same in
  // both.
  void check_folded() const {
    if (static_cast<uint8_t>(in_[pos_]) >= 0x80) refuse("a character beyond ASCII in (?i:");
    for (const std::string_view pair : {"ss", "st", "ff", "fi", "fl"}) {
      if (in_.size() - pos_ >= 2 && lower(in_[pos_]) == pair[0] &&
          lower(in_[pos_ + 1]) == pair[1]) {
        refuse(concat("\"", pair, "\" in (?i:"));
      }
    }
  }

  static char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

  bool folds() const { return !fold_.empty() && fold_.back(); }

  // One item outside a character class.
  void item() {
    if (folds()) check_folded();
    switch (in_[pos_]) {
      case '\\':
        return escape(false);
      case '[':
        return char_class();
      case '(':
        return group();
      case ')':
        if (!fold_.empty()) fold_.pop_back();  // else PCRE2 refuses the pattern
        return copy(1);
      case '{':
        if (folds()) refuse("\"{\" in (?i:");
        return interval();
      default:
        copy(1);
    }
  }

  void group() {
    if (at("(*")) refuse("a verb \"(*\"");
    bool fold = folds();
    std::string_view opening = "(";
    if (at("(?")) {
      const auto group = std::find_if(kGroups.begin(), kGroups.end(),
                                      [&](std::string_view one) { return at(one); });
      if (group == kGroups.end()) refuse("this kind of group");
      opening = *group;
      if (opening.ends_with("i:")) fold = opening == "(?i:";
    }
    fold_.push_back(fold);
    copy(opening.size());
  }

  // {n}, {n,} and {n,m} mean the same to both; a `+` or `?` behind it does not.
  void interval() {
    size_t end = pos_ + 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end]))) ++end;
      return end > begin;
    };
    bool ok = digits();
    if (ok && end < in_.size() && in_[end] == ',') {
      ++end;
      digits();
    }
    ok = ok && end < in_.size() && in_[end] == '}';
    if (ok && end + 1 < in_.size() && (in_[end + 1] == '+' || in_[end + 1] == '?')) ok = false;
    if (!ok) refuse("this use of \"{\"");
    copy(end + 1 - pos_);
  }

  void char_class() {
    copy(1);
    if (pos_ < in_.size() && in_[pos_] == '^') {
      if (folds()) refuse("a negated class in (?i:");
      copy(1);
    }
    if (pos_ < in_.size() && in_[pos_] == ']') refuse("a \"]\" first in a class");
    while (true) {
      if (pos_ >= in_.size()) refuse("a class without an end");
      if (in_[pos_] == ']') return copy(1);
      if (in_[pos_] == '[') refuse("a class within a class");
      if (at("&&")) refuse("\"&&\" in a class");
      if (folds()) check_folded();
      if (in_[pos_] == '\\') {
        escape(true);
      } else {
        copy(1);
      }
    }
  }

  void put_class(bool in_class, std::string_view body) {
    if (in_class) {
      out_ += body;
    } else {
      out_ += '[';
      out_ += body;
      out_ += ']';
    }
  }

  void escape(bool in_class) {
    if (pos_ + 1 >= in_.size()) refuse("a lone \"\\\"");
    const char c = in_[pos_ + 1];
    if (folds() && std::string_view("pPSxu").find(c) != std::string_view::npos) {
      refuse(concat("\"\\", c, "\" in (?i:"));
    }
    switch (c) {
      case 's':
      case 'S':
        put_class(in_class, c == 's' ? kSpace : kNotSpace);
        pos_ += 2;
        return;
      case 'd':
        put_property(in_class, "Nd", false);
        pos_ += 2;
        return;
      case 'p':
      case 'P':
        return property(in_class);
      case 'x':
      case 'u':
        return code_point();
      case 't':
      case 'n':
      case 'r':
      case 'f':
        return copy(2);
      default:
        // An escaped ASCII punctuation mark is itself; other escapes differ between the two.
        if (!std::ispunct(static_cast<unsigned char>(c)))
          refuse(concat("the escape \"\\", c, "\""));
        copy(2);
    }
  }

  // \p{Name}, \p{^Name} or \P{Name}.
  void property(bool in_class) {
    bool negated = in_[pos_ + 1] == 'P';
    const size_t end = in_.find('}', pos_);
    if (pos_ + 2 >= in_.size() || in_[pos_ + 2] != '{' || end == std::string_view::npos) {
      refuse("\"\\p\" without {name}");
    }
    std::string_view name = in_.substr(pos_ + 3, end - pos_ - 3);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    put_property(in_class, name, negated);
    pos_ = end + 1;
  }

  void put_property(bool in_class, std::string_view name, bool negated) {
    for (const UnicodeProperty& property : kUnicodeProperties) {
      if (property.name != name) continue;
      if (!negated) return put_class(in_class, concat(property.pcre2, property.additions));
      if (in_class) refuse("a negated property in a class");
      out_ += concat("[^", property.pcre2, property.additions, "]");
      return;
    }
    refuse("this character property");
  }

  // \xHH, \x{H...} and \uHHHH become \x{H...}.
  void code_point() {
    const bool braced = in_[pos_ + 1] == 'x' && pos_ + 2 < in_.size() && in_[pos_ + 2] == '{';
    const size_t begin = pos_ + 2 + (braced ? 1 : 0);
    size_t end = begin;
    const size_t most = braced ? 6 : in_[pos_ + 1] == 'u' ? 4 : 2;
    char32_t value = 0;
    while (end < in_.size() && end - begin < most &&
           std::isxdigit(static_cast<unsigned char>(in_[end]))) {
      value = value * 16 + static_cast<char32_t>(std::stoi(std::string(1, in_[end]), nullptr, 16));
      ++end;
    }
    const bool closed =
        braced ? end > begin && end < in_.size() && in_[end] == '}' : end - begin == most;
    // Oniguruma takes \x80 and above without braces as a raw byte.
    const bool raw_byte = !braced && most == 2 && value >= 0x80;
    const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
    if (!closed || raw_byte || surrogate || value > 0x10FFFF) refuse("this code point");
    out_ += concat("\\x{", in_.substr(begin, end - begin), "}");
    pos_ = end + (braced ? 1 : 0);
  }

  const std::string_view in_;
  const std::string& where_;
  size_t pos_ = 0;
  std::string out_;
  std::vector<bool> fold_;  // for each open group, whether case is folded in it
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, const std::string& where) {
  if (!is_valid_utf8(pattern)) fail(where, ": the pattern is not valid UTF-8");
  return Rewriter(pattern, where).run();
}

}  // namespace replayssm::model
