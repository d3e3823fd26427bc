// Splits normalized text into the words that BPE works on.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/split_regex.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace replayssm::model {

// Takes the words of a text, as bytes, in order. A word may be gone when take() returns.
class WordSink {
 public:
  virtual void take(std::string_view word) = 0;

 protected:
  ~WordSink() = default;
};

class PreTokenizer {
 public:
  // `steps` hold exactly one ByteLevel. Throws Error at a bad pattern.
  explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps);

  // `text` is valid UTF-8.
  void split(std::string_view text, RegexScratch& scratch, WordSink& sink) const;

 private:
  struct Step {
    PreTokenizerStep plan;
    std::optional<SplitRegex> regex;
  };
  struct Run;

  // Passes the pieces of `text` on to step `index`; behind ByteLevel, `text` is byte characters.
  void apply(size_t index, std::string_view text, bool byte_chars, Run& run) const;
  void apply_byte_level(size_t index, std::string_view text, Run& run) const;
  // Calls take(piece) for each match and, unless they are dropped, each stretch between.
  template <typename Take>
  void each_piece(const Step& step, std::string_view text, Run& run, Take&& take) const;

  std::vector<Step> steps_;
};

}  // namespace replayssm::model
