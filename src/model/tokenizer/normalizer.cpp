#include "model/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/utf8.h"
#include "model/tokenizer/unicode_additions.h"

namespace replayssm::model {
namespace {

// ICU's NFC restricted to the code points that Unicode 9.0 assigned.
class Nfc9 {
 public:
  Nfc9() : nfc_(*full_nfc()), filtered_(nfc_, assigned()) {}

  std::string_view apply(std::string_view text, std::string& buffer) const {
    UErrorCode status = U_ZERO_ERROR;
    const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
    if (filtered_.isNormalizedUTF8(piece, status) && U_SUCCESS(status)) return text;
    status = U_ZERO_ERROR;
    buffer.clear();
    icu::StringByteSink<std::string> sink(&buffer, static_cast<int32_t>(text.size()));
    filtered_.normalizeUTF8(0, piece, sink, nullptr, status);
    if (U_FAILURE(status)) fail("tokenizer: ICU cannot normalize: ", u_errorName(status));
    return buffer;
  }

 private:
  static const icu::Normalizer2* full_nfc() {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(status);
    if (U_FAILURE(status)) fail("tokenizer: ICU has no NFC data: ", u_errorName(status));
    return nfc;
  }

  static const icu::UnicodeSet& assigned() {
    static const icu::UnicodeSet set = [] {
      icu::UnicodeSet result;
      for (UChar32 c = 0; c <= UCHAR_MAX_VALUE; ++c) {
        UVersionInfo age;
        u_charAge(c, age);
        if (age[0] >= 1 && age[0] <= 9) result.add(c);
      }
      result.freeze();
      return result;
    }();
    return set;
  }

  const icu::Normalizer2& nfc_;
  icu::FilteredNormalizer2 filtered_;
};

}  // namespace

std::string_view normalize(Normalization form, std::string_view text, std::string& buffer) {
  if (form == Normalization::kNone || is_ascii(text)) return text;
  static const Nfc9 nfc;
  return nfc.apply(text, buffer);
}

bool is_unicode_space(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)); }

bool is_unicode_word(char32_t c) {
  const auto point = static_cast<UChar32>(c);
  const uint32_t category = U_MASK(u_charType(point));
  const bool joins = c == 0x200C || c == 0x200D;
  if (joins || u_isUAlphabetic(point)) return true;
  if (category & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) return true;
  const auto next =
      std::upper_bound(std::begin(kWordAdditions), std::end(kWordAdditions), c,
                       [](char32_t value, const CodePointRange& r) { return value < r.first; });
  return next != std::begin(kWordAdditions) && c <= std::prev(next)->last;
}

}  // namespace replayssm::model
