#include "server/grammar/pattern.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/utf8.h"

namespace replayssm::server {
namespace {

constexpr int64_t kMaxRepeats = 4096;
constexpr int64_t kMaxSize = 1024;  // in characters, its repetitions written out
// Of the parts that may repeat more or less often: their number times their size, written out. The
// automaton's cost grows with that.
constexpr int64_t kMaxLoose = 640;
constexpr int kMaxGroups = 32;  // one in another
constexpr char32_t kLast = 0x10ffff;

struct Range {
  char32_t low;
  char32_t high;
};
using Set = std::vector<Range>;

// What a JSON string holds as it stands.
const Set kPlain = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0xd7ff}, {0xe000, kLast}};
const Set kDigits = {{'0', '9'}};
const Set kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Set kSpace = {{0x09, 0x0d},     {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680},
                    {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                    {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const Set kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

Set complement(Set set) {
  std::sort(set.begin(), set.end(), [](Range a, Range b) { return a.low < b.low; });
  Set out;
  char32_t next = 0;
  for (const Range range : set) {
    if (range.low > next) out.push_back({next, range.low - 1});
    next = std::max<char32_t>(next, range.high + 1);
  }
  if (next <= kLast) out.push_back({next, kLast});
  return out;
}

Set both(const Set& a, const Set& b) {
  Set either_not = complement(a);
  const Set not_b = complement(b);
  either_not.insert(either_not.end(), not_b.begin(), not_b.end());
  return complement(either_not);
}

std::string escaped(char32_t c) {
  if (c < 0x80 && std::isalnum(static_cast<int>(c)) != 0) return {static_cast<char>(c)};
  char text[16];
  std::snprintf(text, sizeof(text), c > 0xffff ? "\\u{%X}" : "\\u%04X", static_cast<unsigned>(c));
  return text;
}

std::string written(const Set& set) {
  const Set plain = both(set, kPlain);
  if (plain.empty()) fail("asks for a character that JSON writes as an escape");
  if (plain.size() == 1 && plain[0].low == plain[0].high) return escaped(plain[0].low);
  std::string out = "[", caret;
  for (Range range : plain) {
    if (range.low == '^') {  // read as a negation where it comes first
      caret = escaped('^');
      if (++range.low > range.high) continue;
    }
    out += escaped(range.low);
    if (range.high > range.low) out += "-" + escaped(range.high);
  }
  return out + caret + "]";
}

class PatternParser {
 public:
  explicit PatternParser(const std::string& pattern) {
    for (size_t at = 0; at < pattern.size();) {
      const Utf8Unit unit = utf8_unit(pattern, at);
      if (unit.kind != Utf8Kind::kValid) fail("is not UTF-8");
      text_ += utf8_code_point(std::string_view(pattern).substr(at, unit.n_bytes));
      at += unit.n_bytes;
    }
  }

  std::string whole() {
    const Part part = alternatives(true);
    if (!at_end()) fail("has a ) without its (");
    if (part.loose * part.n_loose > kMaxLoose) {
      fail("repeats too freely; minLength and maxLength are not bound so");
    }
    return part.text;
  }

 private:
  struct Part {
    std::string text;
    int64_t size = 0;     // in characters, repetitions written out
    int64_t n_loose = 0;  // parts that may repeat more or less often, written out
    int64_t loose = 0;    // their size
    int64_t length = 0;   // of each match; -1: they differ
    bool may_be_empty = false;
    bool has_anchor = false;
    bool is_last = false;  // ends in $: nothing may follow
  };

  bool at_end() const { return at_ == text_.size(); }
  bool next_is(char32_t c) const { return !at_end() && text_[at_] == c; }
  bool take(char32_t c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }
  char32_t take_any(const char* what) {
    if (at_end()) fail("ends inside ", what);
    return text_[at_++];
  }

  // `is_first`: nothing stands before them.
  Part alternatives(bool is_first) {
    Part out;
    do {
      if (out.size > 0) out.text += '|';
      const Part part = branch(is_first);
      out.length = out.size > 0 && out.length != part.length ? -1 : part.length;
      out.text += part.text;
      out.size += part.size + 1;
      out.loose += part.loose;
      out.n_loose += part.n_loose;
      out.may_be_empty = out.may_be_empty || part.may_be_empty;
      out.has_anchor = out.has_anchor || part.has_anchor;
      out.is_last = out.is_last || part.is_last;
    } while (take('|'));
    return out;
  }

  Part branch(bool is_first) {
    Part out;
    out.may_be_empty = true;
    while (!at_end() && !next_is('|') && !next_is(')')) {
      if (take('$')) {
        out.is_last = out.has_anchor = true;
        continue;
      }
      if (next_is('^') ? !is_first : out.is_last) fail("has an anchor inside");
      if (take('^')) {
        out.has_anchor = true;
        continue;
      }
      const Part part = repeated(is_first);
      is_first = false;
      out.text += part.text;
      out.size += part.size;
      out.loose += part.loose;
      out.n_loose += part.n_loose;
      out.length = out.length < 0 || part.length < 0 ? -1 : out.length + part.length;
      out.may_be_empty = out.may_be_empty && part.may_be_empty;
      out.has_anchor = out.has_anchor || part.has_anchor;
      out.is_last = out.is_last || part.is_last;
      if (out.size > kMaxSize) fail("is too large with its repetitions written out");
    }
    return out;
  }

  Part repeated(bool is_first) {
    Part part = atom(is_first);
    const bool body_varies = part.length < 0;
    bool varies = body_varies;
    int64_t least = 0, most = 1;
    if (take('*') || take('+') || take('?')) {
      const auto sign = static_cast<char>(text_[at_ - 1]);
      part.text += sign;
      least = sign == '+' ? 1 : 0;
      varies = true;
    } else if (take('{')) {
      if (part.may_be_empty) fail("counts repetitions of what may be empty");
      least = most = count();
      part.text += "{" + std::to_string(least);
      if (take(',')) {
        part.text += ',';
        varies = true;
        if (!next_is('}')) {
          most = count();
          if (most < least) fail("has a repetition {", least, ",", most, "}");
          part.text += std::to_string(most);
        }
      }
      if (!take('}')) fail("has a { that is no repetition");
      part.text += '}';
    } else {
      return part;
    }
    take('?');  // lazy: the same strings
    if (part.has_anchor) fail("repeats an anchor");
    const int64_t times = std::max<int64_t>(1, most);
    part.size *= times;
    part.length = varies ? -1 : part.length * most;
    part.loose = varies ? part.size : 0;
    part.n_loose = body_varies ? std::max<int64_t>(1, part.n_loose) * times : varies ? 1 : 0;
    part.may_be_empty = part.may_be_empty || least == 0;
    return part;
  }

  int64_t count() {
    int64_t n = 0;
    const size_t begin = at_;
    while (!at_end() && text_[at_] >= '0' && text_[at_] <= '9') {
      n = n * 10 + (text_[at_++] - '0');
      if (n > kMaxRepeats) fail("repeats more than ", kMaxRepeats, " times");
    }
    if (at_ == begin) fail("has a { that is no repetition");
    return n;
  }

  static Part character(const Set& set) {
    Part part;
    part.text = written(set);
    part.size = part.length = 1;
    return part;
  }

  Part atom(bool is_first) {
    const char32_t c = take_any("itself");
    switch (c) {
      case '(':
        return group(is_first);
      case '[':
        return character(char_class());
      case '.':
        return character(complement(kLineEnds));
      case '\\':
        return character(escape());
      case '*':
      case '+':
      case '?':
      case '{':
        fail("has nothing that ", static_cast<char>(c), " repeats");
      default:
        return character({{c, c}});
    }
  }

  Part group(bool is_first) {
    if (take('?') && !take(':')) {
      if (!take('<') || next_is('=') || next_is('!')) fail("looks around, or sets a flag");
      while (take_any("a group's name") != '>') {
      }
    }
    if (++n_open_ > kMaxGroups) fail("nests deeper than ", kMaxGroups, " groups");
    Part part = alternatives(is_first);
    --n_open_;
    if (!take(')')) fail("has a ( without its )");
    part.text = "(" + part.text + ")";
    return part;
  }

  Set char_class() {
    const bool negated = take('^');
    Set set;
    while (!take(']')) {
      const Set low = class_item();
      if (at_ + 1 < text_.size() && next_is('-') && text_[at_ + 1] != ']') {
        ++at_;
        const Set high = class_item();
        const auto single = [](const Set& s) { return s.size() == 1 && s[0].low == s[0].high; };
        if (!single(low) || !single(high) || low[0].low > high[0].low) {
          fail("has a range that is none");
        }
        set.push_back({low[0].low, high[0].low});
      } else {
        set.insert(set.end(), low.begin(), low.end());
      }
    }
    return negated ? complement(set) : set;
  }

  Set class_item() {
    const char32_t c = take_any("a character class");
    if (c != '\\') return {{c, c}};
    if (take('b')) return {{'\b', '\b'}};
    return escape();
  }

  Set escape() {
    const char32_t c = take_any("an escape");
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return complement(kSpace);
      case 't':
        return {{'\t', '\t'}};
      case 'n':
        return {{'\n', '\n'}};
      case 'v':
        return {{'\v', '\v'}};
      case 'f':
        return {{'\f', '\f'}};
      case 'r':
        return {{'\r', '\r'}};
      case 'x': {
        const char32_t value = hex(2);
        return {{value, value}};
      }
      case 'u': {
        const char32_t value = unicode();
        return {{value, value}};
      }
      default:
        if (c < 0x80 && std::isalnum(static_cast<int>(c)) != 0) {
          fail("has \\", static_cast<char>(c), ", which is not enforced");
        }
        return {{c, c}};
    }
  }

  char32_t hex_digit() {
    const char32_t c = take_any("an escape");
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    fail("has an escape that is none");
  }

  char32_t hex(int n_digits) {
    char32_t value = 0;
    for (int i = 0; i < n_digits; ++i) value = value * 16 + hex_digit();
    return value;
  }

  // Behind \u: {X...}, four digits, or two surrogates.
  char32_t unicode() {
    if (take('{')) {
      char32_t value = 0;
      do {
        value = value * 16 + hex_digit();
        if (value > kLast) fail("has an escape that is none");
      } while (!take('}'));
      return value;
    }
    const char32_t high = hex(4);
    if (high < 0xd800 || high > 0xdbff || !take('\\') || !take('u')) return high;
    const char32_t low = hex(4);
    if (low < 0xdc00 || low > 0xdfff) fail("has half a surrogate pair");
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
  }

  std::u32string text_;
  size_t at_ = 0;
  int n_open_ = 0;
};

}  // namespace

std::string enforced_pattern(const std::string& pattern) { return PatternParser(pattern).whole(); }

}  // namespace replayssm::server
