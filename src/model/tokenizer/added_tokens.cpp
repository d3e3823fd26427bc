#include "model/tokenizer/added_tokens.h"

#include <algorithm>
#include <tuple>

#include "core/utf8.h"

namespace replayssm::model {
namespace {

char32_t first_char(std::string_view text) {
  return utf8_code_point(text.substr(0, utf8_unit(text, 0).n_bytes));
}

size_t last_char_begin(std::string_view text) {
  size_t pos = text.size() - 1;
  while ((static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80) --pos;
  return pos;
}

bool begins_with_word(std::string_view text) {
  return !text.empty() && is_unicode_word(first_char(text));
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_unicode_word(first_char(text.substr(last_char_begin(text))));
}

size_t spaces_at_begin(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size() && is_unicode_space(first_char(text.substr(pos)))) {
    pos += utf8_unit(text, pos).n_bytes;
  }
  return pos;
}

// Where the white space at the end of `text` begins.
size_t trailing_spaces_begin(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t begin = last_char_begin(text.substr(0, end));
    if (!is_unicode_space(first_char(text.substr(begin)))) break;
    end = begin;
  }
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized,
                                   Normalization form) {
  // Of tokens with one content the first counts, special ones before others.
  for (const bool special : {true, false}) {
    for (const AddedToken& token : tokens) {
      if (token.special == special && token.normalized == normalized) tokens_.push_back(token);
    }
  }
  std::string buffer;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    std::string_view content = tokens_[i].content;
    if (normalized) content = normalize(form, content, buffer);
    patterns_.push_back({std::string(content), i});
  }
  // By content; of equal contents, by their order in tokens_.
  std::sort(patterns_.begin(), patterns_.end(), [](const Pattern& a, const Pattern& b) {
    return std::tie(a.content, a.token) < std::tie(b.content, b.token);
  });
  const auto last =
      std::unique(patterns_.begin(), patterns_.end(),
                  [](const Pattern& a, const Pattern& b) { return a.content == b.content; });
  patterns_.erase(last, patterns_.end());
  for (const Pattern& pattern : patterns_) {
    ++first_byte_[static_cast<uint8_t>(pattern.content[0]) + 1];
  }
  for (size_t byte = 1; byte < first_byte_.size(); ++byte) {
    first_byte_[byte] += first_byte_[byte - 1];
  }
}

size_t AddedTokenFinder::longest_at(std::string_view text, size_t pos) const {
  const auto byte = static_cast<uint8_t>(text[pos]);
  // The patterns that agree with the text so far are those from `low` to `high`.
  size_t low = first_byte_[byte];
  size_t high = first_byte_[byte + 1];
  size_t best = kNone;
  for (size_t n = 1; low < high; ++n) {
    if (patterns_[low].content.size() == n) best = low++;
    if (pos + n == text.size()) break;
    const auto begin = patterns_.begin();
    const auto next = static_cast<uint8_t>(text[pos + n]);
    const auto byte_at = [n](const Pattern& p) { return static_cast<uint8_t>(p.content[n]); };
    const auto lower = std::partition_point(begin + low, begin + high,
                                            [&](const Pattern& p) { return byte_at(p) < next; });
    const auto upper = std::partition_point(lower, begin + high,
                                            [&](const Pattern& p) { return byte_at(p) == next; });
    low = static_cast<size_t>(lower - begin);
    high = static_cast<size_t>(upper - begin);
  }
  return best;
}

void AddedTokenFinder::split(std::string_view text, bool parse_special,
                             std::vector<Piece>& pieces) const {
  size_t done = 0;  // the text before it is in pieces
  for (size_t pos = 0; pos < text.size();) {
    const auto byte = static_cast<uint8_t>(text[pos]);
    const bool possible = first_byte_[byte] != first_byte_[byte + 1];
    const size_t found = possible ? longest_at(text, pos) : kNone;
    if (found == kNone) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[patterns_[found].token];
    size_t begin = pos;
    size_t end = pos + patterns_[found].content.size();
    pos = end;
    if (token.special && !parse_special) continue;
    if (token.single_word &&
        (ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end)))) {
      continue;
    }
    if (token.lstrip) begin = std::max(trailing_spaces_begin(text.substr(0, begin)), done);
    if (token.rstrip) end += spaces_at_begin(text.substr(end));
    if (done < begin) pieces.push_back({kText, text.substr(done, begin - done)});
    pieces.push_back({token.id, text.substr(begin, end > begin ? end - begin : 0)});
    done = end;
  }
  if (done < text.size()) pieces.push_back({kText, text.substr(done)});
}

}  // namespace replayssm::model
