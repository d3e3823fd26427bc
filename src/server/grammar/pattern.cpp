#include "server/grammar/pattern.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/utf8.h"
#include "server/grammar/formats.h"

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

// A character class. ECMAScript and Python differ in what \d, \w and \s hold beyond ASCII:
// `sure` is in it for both, what is not in `maybe` is in it for neither.
struct Class {
  Set sure;
  Set maybe;
};

// What a JSON string holds as it stands.
const Set kInJson = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0xd7ff}, {0xe000, kLast}};
const Set kInText = {{0, 0xd7ff}, {0xe000, kLast}};
const Set kBlanks = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
const Set kInBare = {
    {'\n', '\n'}, {'\r', '\r'}, {0x20, '<' - 1}, {'<' + 1, 0xd7ff}, {0xe000, kLast}};
const Class kDigits = {{{'0', '9'}}, {{'0', '9'}, {0x80, kLast}}};
const Class kWord = {{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                     {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {0x80, kLast}}};
const Set kBothSpace = {{0x09, 0x0d},     {0x20, 0x20},     {0xa0, 0xa0},
                        {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                        {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
const Class kSpace = {kBothSpace,
                      {{0x09, 0x0d},
                       {0x1c, 0x20},
                       {0x85, 0x85},
                       {0xa0, 0xa0},
                       {0x1680, 0x1680},
                       {0x2000, 0x200a},
                       {0x2028, 0x2029},
                       {0x202f, 0x202f},
                       {0x205f, 0x205f},
                       {0x3000, 0x3000},
                       {0xfeff, 0xfeff}}};
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

Class complement(const Class& set) { return {complement(set.maybe), complement(set.sure)}; }

Class of(char32_t c) { return {{{c, c}}, {{c, c}}}; }

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

std::string written_class(const Set& set) {
  if (set.size() == 1 && set[0].low == set[0].high) return escaped(set[0].low);
  std::string out = "[", caret;
  for (Range range : set) {
    if (range.low == '^') {  // read as a negation where it comes first
      caret = escaped('^');
      if (++range.low > range.high) continue;
    }
    out += escaped(range.low);
    if (range.high > range.low) out += "-" + escaped(range.high);
  }
  return out + caret + "]";
}

// `plain`: not empty. A class for each length in UTF-8: the compiler lets a range that spans two of
// them hold sequences that are no UTF-8.
std::string written(const Set& plain) {
  std::string out;
  int n_classes = 0;
  for (const Range width : {Range{0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xffff}, {0x10000, kLast}}) {
    const Set part = both(plain, {width});
    if (part.empty()) continue;
    if (n_classes++ > 0) out += '|';
    out += written_class(part);
  }
  return n_classes > 1 ? "(" + out + ")" : out;
}

// A part of the pattern in the compiler's form, in which nothing stands that it takes wrongly: its
// ? lets an optional part that repeats be entered in its middle, and so does its {n,} of a part
// that has several ends.
struct Part {
  std::string text;      // one item: a repetition may stand behind it
  bool none = false;     // no string of plain characters matches it
  int64_t size = 0;      // in characters, repetitions written out
  int64_t n_loose = 0;   // parts that may repeat more or less often, written out
  int64_t loose = 0;     // their size
  int64_t shortest = 0;  // match
  int64_t longest = 0;   // -1: there is none
  bool has_anchor = false;
  bool is_last = false;  // ends in $: nothing may follow
  Set unit;              // the class, where it is one class, repeated shortest to longest times
  bool blank_first = false, blank_last = false;  // a match may begin, or end, with a blank

  bool varies() const { return shortest != longest; }
};

// `body`, one item, repeated. Counts are written in steps: above this the compiler counts while it
// matches, which makes each mask a thousand times dearer.
constexpr int64_t kMaxStep = 128;

std::string repeated_item(const std::string& body, int64_t least, int64_t most) {
  if (least == 1 && most == 1) return body;
  if (most >= 0 && most <= kMaxStep) return concat(body, "{", least, ",", most, "}");
  if (least > 0) {
    const int64_t step = std::min(least, kMaxStep);
    const std::string first = step == 1 ? body : concat(body, "{", step, "}");
    const int64_t rest = most < 0 ? -1 : most - step;
    return rest == 0 ? first : first + repeated_item(body, least - step, rest);
  }
  if (most < 0) return body + "*";
  return concat("(", body, "{0,", kMaxStep - 1, "}|", body, "{", kMaxStep, "}",
                repeated_item(body, 0, most - kMaxStep), ")");
}

Set without_blanks(const Set& set) { return both(set, complement(kBlanks)); }

// A class repeated, of which no match begins (`first`) or ends (`last`) with a blank. Empty if
// there is none but the empty one.
std::string without_blank_ends(const Set& unit, int64_t least, int64_t most, bool first,
                               bool last) {
  const Set end = without_blanks(unit);
  if (end.empty() || most == 0) return {};
  const auto inner = [&](int64_t n_ends) {
    const int64_t inner_most = most < 0 ? -1 : most - n_ends;
    return inner_most == 0
               ? std::string()
               : repeated_item(written(unit), std::max<int64_t>(0, least - n_ends), inner_most);
  };
  std::string out;
  if (first != last) {
    out = first ? written(end) + inner(1) : inner(1) + written(end);
  } else {
    if (most < 0 || most >= 2) out = written(end) + inner(2) + written(end);
    if (least < 2) out = out.empty() ? written(end) : concat("(", written(end), "|", out, ")");
  }
  return least == 0 ? concat("(", out, "){0,1}") : out;
}

// What the parser throws where only the ends of a whole pattern's parts hold the blanks.
struct BlanksInside {};

class PatternParser {
 public:
  // `plain`: the characters that may be written; `bare`: without blanks at the ends; `trusted`:
  // ours, without bounds.
  PatternParser(const std::string& pattern, const Set& plain, bool bare, bool trusted)
      : plain_(plain), bare_(bare), trusted_(trusted) {
    for (size_t at = 0; at < pattern.size();) {
      const Utf8Unit unit = utf8_unit(pattern, at);
      if (unit.kind != Utf8Kind::kValid) fail("is not UTF-8");
      text_ += utf8_code_point(std::string_view(pattern).substr(at, unit.n_bytes));
      at += unit.n_bytes;
    }
  }

  EnforcedPattern whole(const Lengths& lengths) {
    const Part part = alternatives(true, true);
    if (!at_end()) fail("has a ) without its (");
    if (part.none) fail("asks for a character that JSON writes as an escape, or none");
    if (!trusted_ && part.loose * part.n_loose > kMaxLoose) {
      fail("repeats too freely; minLength and maxLength are not bound so");
    }
    const bool above = part.shortest >= lengths.least;
    const bool below = lengths.most < 0 || (part.longest >= 0 && part.longest <= lengths.most);
    if (above && below) return {part.text, part.size};
    if (part.unit.empty()) fail("cannot stand beside this minLength or maxLength");
    const int64_t least = std::max(part.shortest, lengths.least);
    const int64_t most = below ? part.longest : lengths.most;
    if (most >= 0 && least > most) fail("has no match that minLength and maxLength allow");
    const int64_t size = std::max(least, most);
    if (size > kMaxLoose) fail("with this minLength or maxLength repeats too freely");
    if (bare_) return {without_blank_ends(part.unit, least, most, true, true), size};
    return {repeated_item(written(part.unit), least, most), size};
  }

 private:
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

  // `is_first`: nothing stands before them. `is_whole`: nor behind them.
  Part alternatives(bool is_first, bool is_whole = false) {
    Part out;
    out.none = true;
    int n_taken = 0;
    do {
      const Part part = branch(is_first, is_whole);
      out.size += part.size + 1;
      out.has_anchor = out.has_anchor || part.has_anchor;
      out.is_last = out.is_last || part.is_last;
      if (part.none) continue;
      const bool endless = part.longest < 0 || (n_taken > 0 && out.longest < 0);
      out.longest = endless ? -1 : std::max(out.longest, part.longest);
      out.shortest = n_taken > 0 ? std::min(out.shortest, part.shortest) : part.shortest;
      out.unit = part.unit;
      out.blank_first = out.blank_first || part.blank_first;
      out.blank_last = out.blank_last || part.blank_last;
      if (n_taken++ > 0) out.text += '|';
      out.none = false;
      out.text += part.text;
      out.loose += part.loose;
      out.n_loose += part.n_loose;
    } while (take('|'));
    if (n_taken > 1) {
      out.text = "(" + out.text + ")";
      out.unit.clear();
    }
    return out;
  }

  Part branch(bool is_first, bool is_whole) {
    Part out;
    std::vector<Part> parts;
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
      const Part& part = parts.emplace_back(repeated(is_first));
      is_first = false;
      out.size += part.size;
      out.has_anchor = out.has_anchor || part.has_anchor;
      out.is_last = out.is_last || part.is_last;
      if (!trusted_ && out.size > kMaxSize) fail("is too large with its repetitions written out");
    }
    if (parts.size() == 1) out.unit = parts[0].unit;
    if (bare_ && is_whole) cut_blank_ends(parts);
    bool is_empty = true;  // so far, or it may be
    for (const Part& part : parts) {
      out.none = out.none || part.none;
      out.text += part.text;
      out.loose += part.loose;
      out.n_loose += part.n_loose;
      out.blank_first = out.blank_first || (is_empty && part.blank_first);
      out.blank_last = part.blank_last || (part.shortest == 0 && out.blank_last);
      is_empty = is_empty && part.shortest == 0;
      out.shortest += part.shortest;
      out.longest = out.longest < 0 || part.longest < 0 ? -1 : out.longest + part.longest;
    }
    return out;
  }

  static void cut_blank_ends(std::vector<Part>& parts) {
    std::vector<bool> first(parts.size()), last(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      first[i] = parts[i].blank_first;
      if (parts[i].shortest > 0) break;
    }
    for (size_t i = parts.size(); i-- > 0;) {
      last[i] = parts[i].blank_last;
      if (parts[i].shortest > 0) break;
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!first[i] && !last[i]) continue;
      Part& part = parts[i];
      if (part.none) continue;
      if (part.unit.empty()) throw BlanksInside();
      part.text = without_blank_ends(part.unit, part.shortest, part.longest, first[i], last[i]);
      part.none = part.text.empty() && part.shortest > 0;
    }
  }

  Part repeated(bool is_first) {
    Part part = atom(is_first);
    int64_t least = 0, most = -1;  // -1: any number
    if (take('*')) {
    } else if (take('+')) {
      least = 1;
    } else if (take('?')) {
      most = 1;
    } else if (take('{')) {
      least = most = count();
      if (take(',')) {
        most = next_is('}') ? -1 : count();
        if (most >= 0 && most < least) fail("has a repetition {", least, ",", most, "}");
      }
      if (!take('}')) fail("has a { that is no repetition");
    } else {
      return part;
    }
    take('?');  // lazy: the same strings
    if (part.has_anchor) fail("repeats an anchor");
    return times(part, part.shortest == 0 ? 0 : least, most);
  }

  static Part times(Part part, int64_t least, int64_t most) {
    if (part.none ? least == 0 : most == 0) return {};
    if (part.none || part.text.empty()) return part;
    const bool body_varies = part.varies();
    const bool varies = body_varies || least != most;
    const int64_t n = std::max(least, most < 0 ? 1 : most);
    part.size *= n;
    part.loose = varies ? part.size : 0;
    part.n_loose = body_varies ? std::max<int64_t>(1, part.n_loose) * n : varies ? 1 : 0;
    if (body_varies || part.shortest != 1) part.unit.clear();
    part.text = repeated_item(part.unit.empty() ? "(" + part.text + ")" : part.text, least, most);
    part.shortest *= least;
    part.longest = part.longest < 0 || most < 0 ? -1 : part.longest * most;
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

  Part character(const Class& set) const {
    const Set plain = both(set.sure, plain_);
    Part part;
    part.none = plain.empty();
    if (!part.none) part.text = written(plain);
    part.unit = plain;
    part.blank_first = part.blank_last = bare_ && !both(plain, kBlanks).empty();
    part.size = part.shortest = part.longest = 1;
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
        return character({complement(kLineEnds), complement(kLineEnds)});
      case '\\':
        return character(escape());
      case '*':
      case '+':
      case '?':
      case '{':
        fail("has nothing that ", static_cast<char>(c), " repeats");
      default:
        return character(of(c));
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
    return part;
  }

  Class char_class() {
    const bool negated = take('^');
    if (next_is(']')) fail("has a class that begins with ], which is read in two ways");
    Class set;
    const auto add = [](Set& to, const Set& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    while (!take(']')) {
      const Class low = class_item();
      if (at_ + 1 < text_.size() && next_is('-') && text_[at_ + 1] != ']') {
        ++at_;
        const Class high = class_item();
        const auto single = [](const Class& c) {
          return c.sure.size() == 1 && c.sure[0].low == c.sure[0].high;
        };
        if (!single(low) || !single(high) || low.sure[0].low > high.sure[0].low) {
          fail("has a range that is none");
        }
        const Range range = {low.sure[0].low, high.sure[0].low};
        set.sure.push_back(range);
        set.maybe.push_back(range);
      } else {
        add(set.sure, low.sure);
        add(set.maybe, low.maybe);
      }
    }
    return negated ? complement(set) : set;
  }

  Class class_item() {
    const char32_t c = take_any("a character class");
    if (c != '\\') return of(c);
    if (take('b')) return of('\b');
    return escape();
  }

  Class escape() {
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
        return of('\t');
      case 'n':
        return of('\n');
      case 'v':
        return of('\v');
      case 'f':
        return of('\f');
      case 'r':
        return of('\r');
      case 'x':
        return of(hex(2));
      case 'u':
        return of(unicode());
      default:
        if (c < 0x80 && std::isalnum(static_cast<int>(c)) != 0) {
          fail("has \\", static_cast<char>(c), ", which is not enforced");
        }
        return of(c);
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

  const Set& plain_;
  const bool bare_;
  const bool trusted_;
  std::u32string text_;
  size_t at_ = 0;
  int n_open_ = 0;
};

EnforcedPattern enforced(const std::string& pattern, const Lengths& lengths, StringForm form,
                         bool trusted) {
  if (form == StringForm::kQuoted) {
    return PatternParser(pattern, kInJson, /*bare=*/false, trusted).whole(lengths);
  }
  try {
    return PatternParser(pattern, kInBare, /*bare=*/true, trusted).whole(lengths);
  } catch (const BlanksInside&) {
    const Set plain = without_blanks(kInBare);
    return PatternParser(pattern, plain, /*bare=*/false, trusted).whole(lengths);
  }
}

}  // namespace

EnforcedPattern enforced_pattern(const std::string& pattern, const Lengths& lengths,
                                 StringForm form) {
  return enforced(pattern, lengths, form, /*trusted=*/false);
}

EnforcedPattern enforced_text_pattern(const std::string& pattern) {
  return PatternParser(pattern, kInText, /*bare=*/false, /*trusted=*/false).whole({});
}

EnforcedPattern enforced_format(const std::string& format, const Lengths& lengths,
                                StringForm form) {
  return enforced(format_pattern(format, /*bounded=*/lengths.most >= 0), lengths, form,
                  /*trusted=*/true);
}

std::string bare_string(const Lengths& lengths) {
  return without_blank_ends(kInBare, lengths.least, lengths.most, true, true);
}

}  // namespace replayssm::server
