// What a tokenizer.json says, as plain data, checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/bpe.h"
#include "model/tokenizer/normalizer.h"

namespace replayssm::model {

struct AddedToken {
  std::string content;
  int32_t id;
  bool special;
  bool normalized;   // sought in normalized text, else in the text as given
  bool lstrip;       // takes the white space before it
  bool rstrip;       // takes the white space behind it
  bool single_word;  // counts only where no word character touches it
};

// One step of splitting text into words. ByteLevel may split with GPT-2's pattern; what comes
// behind it sees byte characters in place of the text.
struct PreTokenizerStep {
  enum class Kind { kSplit, kByteLevel };
  Kind kind;
  std::string where;              // the field, for messages
  std::string pattern;            // kSplit: for PCRE2
  bool matches_only = false;      // kSplit: text between matches is dropped
  bool add_prefix_space = false;  // kByteLevel: a space before each piece that has none
  bool use_regex = false;         // kByteLevel
};

struct TokenizerSpec {
  std::vector<std::string> tokens;    // by id, as in the file; empty where the vocabulary has a gap
  std::vector<bool> in_model;         // by id: the token is of the model's own vocabulary
  std::array<int32_t, 256> byte_ids;  // Bpe::kNoToken: the vocabulary lacks the byte
  int32_t unknown = Bpe::kNoToken;    // stands for such bytes; kNoToken: they are dropped
  bool fuse_unknown = false;          // for several in a row but once
  std::vector<Merge> merges;
  bool ignore_merges = false;  // a word that is a token is that token
  Normalization normalization = Normalization::kNone;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<AddedToken> added;
  std::vector<int32_t> prefix;  // what the post-processor puts before and behind a text
  std::vector<int32_t> suffix;
};

constexpr size_t kMaxTokenizerJsonBytes = 256 << 20;

// Parses and checks. Throws Error with one line: `name`, the field and the reason.
TokenizerSpec parse_tokenizer_json(std::string_view json, const std::string& name);

}  // namespace replayssm::model
