// A compiled split pattern.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace replayssm::model {

// What one thread needs to match: any patterns, one at a time.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class SplitRegex;
  struct State;
  std::unique_ptr<State> state_;
};

class SplitRegex {
 public:
  // Compiles a pattern in PCRE2's syntax. Throws Error, beginning with `where`, at a bad pattern.
  SplitRegex(const std::string& pcre2_pattern, const std::string& where);
  ~SplitRegex();
  SplitRegex(SplitRegex&&) noexcept;
  SplitRegex& operator=(SplitRegex&&) noexcept;

  struct Match {
    size_t begin;
    size_t end;
  };

  // Walks over the matches in valid UTF-8: non-overlapping, from the left. An empty match right
  // behind the one before is no match.
  class Matches {
   public:
    Matches(const SplitRegex& regex, std::string_view text, RegexScratch& scratch)
        : regex_(regex), text_(text), scratch_(scratch) {}

    // The next match, in `match`; false at the end. Throws Error when PCRE2 gives up.
    bool next(Match& match);

   private:
    const SplitRegex& regex_;
    const std::string_view text_;
    RegexScratch& scratch_;
    size_t from_ = 0;
    size_t last_end_ = kNoMatch;
    static constexpr size_t kNoMatch = static_cast<size_t>(-1);
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace replayssm::model
