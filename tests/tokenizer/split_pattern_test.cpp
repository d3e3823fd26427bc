// The rewriting of split patterns for PCRE2.
#include "model/tokenizer/split_pattern.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "model/tokenizer/split_regex.h"
#include "model/tokenizer/utf8.h"

namespace replayssm::model {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const SplitRegex regex(pcre2_pattern(pattern, "here"), "here");
  RegexScratch scratch;
  SplitRegex::Matches walk(regex, text, scratch);
  SplitRegex::Match match;
  std::vector<std::string> out;
  while (walk.next(match)) out.push_back(text.substr(match.begin, match.end - match.begin));
  return out;
}

using Strings = std::vector<std::string>;

TEST(SplitPattern, SpaceIsTheUnicodePropertyWhiteSpace) {
  size_t n_spaces = 0;
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    if (c > 0x3100 && c % 97) continue;  // a sample where there are none
    std::string text;
    append_utf8(text, c);
    const bool is_space = matches(R"(\s)", text).size() == 1;
    n_spaces += is_space;
    EXPECT_EQ(matches(R"([\s])", text).size() == 1, is_space);
    EXPECT_NE(matches(R"(\S)", text).size() == 1, is_space);
    EXPECT_NE(matches(R"([\S])", text).size() == 1, is_space);
  }
  EXPECT_EQ(n_spaces, 25u);
}

TEST(SplitPattern, KnowsUnicode16) {
  EXPECT_EQ(matches(R"(\p{L}+)", "a\U00013460\U00010D4A1"), Strings({"a\U00013460\U00010D4A"}));
  EXPECT_EQ(matches(R"(\p{N})", "\U0001CCF0"), Strings({"\U0001CCF0"}));
  EXPECT_EQ(matches(R"([^\p{L}])", "\U00013460 x"), Strings({" "}));
  EXPECT_EQ(matches(R"(\P{L}|\p{^Lu})", "\U00013460A-"), Strings({"\U00013460", "-"}));
}

TEST(SplitPattern, ScriptsAreScriptsNotTheirExtensions) {
  EXPECT_EQ(matches(R"(\p{Han}+)", "漢、字"), Strings({"漢", "字"}));
}

TEST(SplitPattern, EmptyMatchesMoveOn) {
  EXPECT_EQ(matches("x*", "éxa"), Strings({"", "x", ""}));
  EXPECT_EQ(matches("", "é"), Strings({"", ""}));
}

TEST(SplitPattern, RefusesWhatTheTwoReadDifferently) {
  for (const char* pattern :
       {R"(\w)",     R"(\b)",          R"(\h)",      R"(\R)",      R"(\X)",      R"(\1)",
        R"(\k<a>)",  R"(\pL)",         R"(\p{Foo})", R"(\p{L)",    R"([\P{L}])", R"([a&&b])",
        R"([a[b]])", R"([[:alpha:]])", R"([]a])",    R"([a)",      R"(a{2}+)",   R"(a{2}?)",
        R"(a{,2})",  R"({)",           R"((?m:.))",  R"((?<n>a))", R"((?#c))",   R"((*FAIL))",
        R"(\xff)",   R"(\x{110000})",  R"(\uD800)",  R"(\u12)",    R"(\x{})",    "\\",
        "\xFF"}) {
    EXPECT_THROW(pcre2_pattern(pattern, "here"), Error) << pattern;
  }
}

TEST(SplitPattern, FoldsCaseOfAsciiOnly) {
  EXPECT_EQ(matches(R"('(?i:[sdmt]|ll|ve|re))", "'S 'ſ 'LL 'x 'Re"),
            Strings({"'S", "'ſ", "'LL", "'Re"}));
  EXPECT_EQ(matches(R"((?i:a(?-i:b\p{Lu}))\p{Lu})", "AbXY aBXY"), Strings({"AbXY"}));
  for (const char* pattern :
       {R"((?i:ss))", R"((?i:sT))", R"((?i:x(ff)))", R"((?i:ß))", R"((?i:\p{L}))", R"((?i:[^a]))",
        R"((?i:s{2}))", R"((?i:[é]))", R"((?i:(?-i:ss)\xdf))", R"((?i:\u00df))"}) {
    EXPECT_THROW(pcre2_pattern(pattern, "here"), Error) << pattern;
  }
  EXPECT_NO_THROW(pcre2_pattern("(?i:a)ss|((?i:b)ß)", "here"));
}

// JIT code of PCRE2 10.42 finds "①.é".
TEST(SplitPattern, AtomicGroupsAreAtomic) {
  EXPECT_EQ(matches(R"((?>[^1-3a]??\S[\n]*+)\p{L})", "#\u3000①.é"), Strings({".é"}));
}

TEST(SplitPattern, BadPatternsAreRefused) {
  for (const char* pattern : {"(", ")", "a**", "(?<=a+)b", "[z-a]", "*"}) {
    try {
      matches(pattern, "a");
      ADD_FAILURE() << pattern;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find("here: bad pattern: "), 0u) << error.what();
    }
  }
}

TEST(SplitPattern, GivesUpWithAnErrorNotACrash) {
  EXPECT_THROW(matches("(?:a|aa)+[c-z]", std::string(1000, 'a')), Error);
}

}  // namespace
}  // namespace replayssm::model
