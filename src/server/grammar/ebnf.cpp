#include "server/grammar/ebnf.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <set>

#include "core/error.h"

namespace replayssm::server {
namespace {

constexpr int64_t kMaxRepeats = 128;  // of one repetition: above, the compiler counts slowly
constexpr int64_t kMaxAllRepeats = 1024;
constexpr int kMaxGroups = 32;  // one in another
constexpr size_t kMaxRules = 256;
constexpr size_t kMaxLoops = 64;  // repetitions without an end: what they may share grows fast
// What the compiler's language has beyond EBNF.
const std::set<std::string> kMacros = {"TagDispatch",      "Token", "ExcludeToken",
                                       "TokenTagDispatch", "Regex", "Substring"};

class Scan {
 public:
  explicit Scan(const std::string& text) : text_(text) {}

  void all() {
    if (text_.size() > kMaxGrammarBytes) fail("is larger than ", kMaxGrammarBytes, " bytes");
    while (at_ < text_.size()) one();
    if (n_open_ > 0) fail("has a ( without its )");
  }

 private:
  void one() {
    const char c = text_[at_++];
    if (c == '#') {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    } else if (c == '"') {
      skip_to('"', "a string");
    } else if (c == '[') {
      skip_to(']', "a character class");
    } else if (c == '(') {
      if (at_ < text_.size() && text_[at_] == '=') fail("looks ahead, which is not enforced");
      if (++n_open_ > kMaxGroups) fail("nests deeper than ", kMaxGroups, " groups");
    } else if (c == ')') {
      if (--n_open_ < 0) fail("has a ) without its (");
    } else if (c == '*' || c == '+') {
      loop();
    } else if (c == '{') {
      counts();
    } else if (c == '=') {
      if (++n_rules_ > kMaxRules) fail("has more than ", kMaxRules, " rules");
    } else if (c == '/') {
      fail("has a /, which is no part of EBNF");
    } else if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_') {
      name();
    }
  }

  void skip_to(char end, const char* what) {
    for (; at_ < text_.size() && text_[at_] != end; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    if (at_++ >= text_.size()) fail("ends inside ", what);
  }

  void name() {
    const size_t begin = at_ - 1;
    const auto goes_on = [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
    };
    while (at_ < text_.size() && goes_on(static_cast<unsigned char>(text_[at_]))) ++at_;
    const std::string word = text_.substr(begin, at_ - begin);
    if (kMacros.contains(word)) fail("has ", word, ", which is no part of EBNF");
    // A rule's attributes.
    if (at_ < text_.size() && text_[at_] == '[') {
      size_t end = text_.find(']', at_);
      if (end == std::string::npos) fail("ends inside a character class");
      end = text_.find_first_not_of(" \t", end + 1);
      if (end != std::string::npos && text_.compare(end, 3, "::=") == 0) {
        fail("gives the rule ", word.substr(0, 64), " attributes, which are no part of EBNF");
      }
    }
  }

  void loop() {
    if (++n_loops_ > kMaxLoops) fail("has more than ", kMaxLoops, " repetitions without an end");
  }

  void counts() {
    int64_t largest = 0, value = 0;
    for (; at_ < text_.size() && text_[at_] != '}'; ++at_) {
      const char c = text_[at_];
      value = c >= '0' && c <= '9' ? value * 10 + (c - '0') : 0;
      largest = std::max(largest, value);
      if (largest > kMaxRepeats) fail("repeats more than ", kMaxRepeats, " times");
    }
    if (at_ >= text_.size()) fail("ends inside a repetition");
    if (text_[at_ - 1] == ',') loop();
    ++at_;
    n_repeats_ += largest;
    if (n_repeats_ > kMaxAllRepeats)
      fail("has repetitions of more than ", kMaxAllRepeats, " in all");
  }

  const std::string& text_;
  size_t at_ = 0;
  int n_open_ = 0;
  size_t n_rules_ = 0;
  size_t n_loops_ = 0;
  int64_t n_repeats_ = 0;
};

}  // namespace

void check_ebnf(const std::string& grammar) { Scan(grammar).all(); }

}  // namespace replayssm::server
