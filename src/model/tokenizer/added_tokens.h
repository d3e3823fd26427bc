// Finds added tokens in text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer_spec.h"

namespace replayssm::model {

class AddedTokenFinder {
 public:
  static constexpr int32_t kText = -1;

  // A stretch of the text: an added token, or (kText) text between them.
  struct Piece {
    int32_t id;
    std::string_view text;
  };

  // Seeks the tokens whose `normalized` flag is this one; with `normalized`, by their normalized
  // content.
  AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized, Normalization form);

  bool empty() const { return patterns_.empty(); }

  // Appends the pieces of valid UTF-8: the leftmost, then longest tokens, each with the white space
  // that its flags claim. Without `parse_special`, special tokens stay text. Follows the
  // `tokenizers` library to the letter; so a token that begins in white space which the token
  // before it took comes on top of that, and a match set aside (special, or not a single word)
  // hides others that begin inside it.
  void split(std::string_view text, bool parse_special, std::vector<Piece>& pieces) const;

 private:
  struct Pattern {
    std::string content;
    size_t token;  // in tokens_
  };
  static constexpr size_t kNone = static_cast<size_t>(-1);

  // The index of the longest pattern at text[pos], or kNone.
  size_t longest_at(std::string_view text, size_t pos) const;

  std::vector<AddedToken> tokens_;
  std::vector<Pattern> patterns_;           // sorted by content
  std::array<uint32_t, 257> first_byte_{};  // patterns_ from [b] to [b + 1] begin with byte b
};

}  // namespace replayssm::model
