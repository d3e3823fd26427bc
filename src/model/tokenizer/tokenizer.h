// Byte-level BPE as tokenizer.json of Hugging Face's `tokenizers` describes it: text to tokens and
// back, equal to that library's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/utf8.h"

namespace replayssm::model {

// Immutable once loaded; every const function may be called by many threads at once.
//
// Taken: BPE over bytes, of which the vocabulary may lack some; normalizer NFC; pre-tokenizers
// Split, ByteLevel, Digits, Punctuation and sequences of them with one ByteLevel; decoder
// ByteLevel; added tokens with all their flags. Whatever else is met is refused at load.
// `truncation` and `padding` are not applied: how much of a prompt counts is not the tokenizer's to
// say.
class Tokenizer {
 public:
  // Reads a tokenizer.json. Throws Error with one line that names the file, the field and the
  // fault.
  static Tokenizer load(const std::string& path);

  // The same from text; `name` stands for the file in messages.
  static Tokenizer parse(std::string_view json, const std::string& name);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // The tokens of `text`; ill-formed UTF-8 counts as U+FFFD (see to_valid_utf8). Without
  // `parse_special`, special tokens written in the text are plain text; other added tokens are
  // found either way. Adds neither prefix_ids() nor suffix_ids(). Throws Error only if the split
  // pattern of the file exceeds PCRE2's limits on this text, or the text exceeds 1 GiB.
  std::vector<int32_t> encode(std::string_view text, bool parse_special = true) const;

  // encode(text) between prefix_ids() and suffix_ids(): a whole text that no chat template wrote.
  std::vector<int32_t> encode_prompt(std::string_view text) const;

  // The bytes of the tokens, one after another; with `skip_special`, of those not special. They
  // need not be valid UTF-8: a token may end inside a character, and a model may write nonsense.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes that a token stands for. Empty for an id that is no token.
  std::string_view token_bytes(int32_t id) const;

  // The token written as in the file (byte characters, not bytes: "Ġthe" for " the").
  std::optional<int32_t> id_of(std::string_view token) const;

  // One more than the largest id. Ids below it need not all be tokens.
  int32_t vocab_size() const;

  // Whether the file declares the token special (a mark of the chat format or the like).
  bool is_special(int32_t id) const;
  // The special tokens, by rising id.
  std::span<const int32_t> special_ids() const;

  // What the file's post-processor puts before and behind a whole text (a begin-of-text token,
  // say). Chat templates write these themselves.
  std::span<const int32_t> prefix_ids() const;
  std::span<const int32_t> suffix_ids() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// Makes valid UTF-8 of tokens as they come. The parts returned, concatenated, are
// to_valid_utf8(decode(ids)). The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that is certain once `id` has come; an unfinished character is held back.
  std::string push(int32_t id) {
    if (skip_special_ && tokenizer_->is_special(id)) return {};
    return stream_.push(tokenizer_->token_bytes(id));
  }

  // The end: U+FFFD for an unfinished character. Ready for another text then.
  std::string finish() { return stream_.finish(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace replayssm::model
