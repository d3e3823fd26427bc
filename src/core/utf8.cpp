#include "core/utf8.h"

#include <cstring>

namespace replayssm {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The number of bytes at the front of `text` that are ASCII, found eight at a time.
size_t ascii_prefix(std::string_view text) {
  size_t pos = 0;
  while (pos + sizeof(uint64_t) <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + pos, sizeof(word));
    if (word & 0x8080808080808080ULL) break;
    pos += sizeof(word);
  }
  while (pos < text.size() && static_cast<uint8_t>(text[pos]) < 0x80) ++pos;
  return pos;
}

// Appends the valid form of `text` to `out`. Stops before a truncated end and returns where.
size_t append_valid(std::string& out, std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const size_t n_ascii = ascii_prefix(text.substr(pos));
    out.append(text, pos, n_ascii);
    pos += n_ascii;
    if (pos == text.size()) break;
    const Utf8Unit unit = utf8_unit(text, pos);
    if (unit.kind == Utf8Kind::kTruncated) break;
    if (unit.kind == Utf8Kind::kValid) {
      out.append(text, pos, unit.n_bytes);
    } else {
      out.append(kReplacement);
    }
    pos += unit.n_bytes;
  }
  return pos;
}

}  // namespace

Utf8Unit utf8_unit(std::string_view text, size_t pos) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = at(pos);
  if (lead < 0x80) return {Utf8Kind::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Kind::kInvalid, 1};
  const uint8_t n_bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and points above U+10FFFF.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (uint8_t i = 1; i < n_bytes; ++i) {
    if (pos + i == text.size()) return {Utf8Kind::kTruncated, i};
    if (at(pos + i) < low || at(pos + i) > high) return {Utf8Kind::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::kValid, n_bytes};
}

char32_t utf8_code_point(std::string_view unit) {
  const auto at = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(unit[i])); };
  switch (unit.size()) {
    case 1:
      return at(0);
    case 2:
      return (at(0) & 0x1F) << 6 | (at(1) & 0x3F);
    case 3:
      return (at(0) & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
    default:
      return (at(0) & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F);
  }
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_ascii(std::string_view text) { return ascii_prefix(text) == text.size(); }

bool is_valid_utf8(std::string_view text) {
  size_t pos = 0;
  while (true) {
    pos += ascii_prefix(text.substr(pos));
    if (pos == text.size()) return true;
    const Utf8Unit unit = utf8_unit(text, pos);
    if (unit.kind != Utf8Kind::kValid) return false;
    pos += unit.n_bytes;
  }
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (append_valid(out, text) < text.size()) out.append(kReplacement);
  return out;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_.append(bytes);
  std::string out;
  pending_.erase(0, append_valid(out, pending_));
  return out;
}

std::string Utf8Stream::finish() {
  std::string out(pending_.empty() ? std::string_view() : kReplacement);
  pending_.clear();
  return out;
}

}  // namespace replayssm
