// The rewriting of split patterns for PCRE2.
#include "model/tokenizer/split_pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/utf8.h"
#include "model/tokenizer/split_regex.h"

namespace replayssm::model {
namespace {

using Strings = std::vector<std::string>;

Strings matches(const std::string& pattern, const std::string& text) {
  const SplitRegex regex(pcre2_pattern(pattern, "here"), "here");
  RegexScratch scratch;
  SplitRegex::Matches walk(regex, text, scratch);
  SplitRegex::Match match;
  Strings out;
  while (walk.next(match)) out.push_back(text.substr(match.begin, match.end - match.begin));
  return out;
}

TEST(SplitPattern, SpaceIsTheUnicodePropertyWhiteSpace) {
  std::string text;
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
  }
  const Strings spaces = matches(R"(\s)", text);
  EXPECT_EQ(spaces.size(), 25u);
  EXPECT_EQ(std::count(spaces.begin(), spaces.end(), "\u180E"), 0);
  EXPECT_EQ(matches(R"([\s])", text), spaces);
  EXPECT_EQ(matches(R"([^\S])", text), spaces);
  // Runs of others lie before, between and behind the runs of spaces.
  const Strings others = matches(R"(\S+)", text);
  EXPECT_EQ(others.size(), matches(R"(\s+)", text).size() + 1);
  EXPECT_EQ(matches(R"([\S]+)", text), others);
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
