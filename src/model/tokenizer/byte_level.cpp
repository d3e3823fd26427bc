#include "model/tokenizer/byte_level.h"

#include <array>

#include "core/utf8.h"

namespace replayssm::model {
namespace {

constexpr int kNoByte = -1;
constexpr char32_t kEndOfAlphabet = 0x144;

struct Alphabet {
  std::array<std::string, 256> chars;
  std::array<int, kEndOfAlphabet> bytes;

  Alphabet() {
    bytes.fill(kNoByte);
    char32_t next_spare = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      const char32_t c = printable ? static_cast<char32_t>(byte) : next_spare++;
      append_utf8(chars[byte], c);
      bytes[c] = byte;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

const std::string& byte_char(uint8_t byte) { return alphabet().chars[byte]; }

std::string to_byte_chars(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) out += byte_char(static_cast<uint8_t>(byte));
  return out;
}

std::optional<std::string> from_byte_chars(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Unit unit = utf8_unit(text, pos);
    if (unit.kind != Utf8Kind::kValid) return std::nullopt;
    const char32_t c = utf8_code_point(text.substr(pos, unit.n_bytes));
    if (c >= kEndOfAlphabet || alphabet().bytes[c] == kNoByte) return std::nullopt;
    out.push_back(static_cast<char>(alphabet().bytes[c]));
    pos += unit.n_bytes;
  }
  return out;
}

}  // namespace replayssm::model
