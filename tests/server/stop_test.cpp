#include "server/answer/stop.h"

#include <gtest/gtest.h>

namespace replayssm::server {
namespace {

// Pushes the text in pieces of n bytes.
std::string cut(const std::vector<std::string>& stops, const std::string& text, size_t n,
                bool* stopped = nullptr) {
  StopMatcher matcher(stops);
  std::string out;
  for (size_t i = 0; i < text.size(); i += n) out += matcher.push(text.substr(i, n));
  out += matcher.finish();
  if (stopped != nullptr) *stopped = matcher.stopped();
  return out;
}

TEST(Stop, SameForEveryCut) {
  const struct {
    std::vector<std::string> stops;
    std::string text, expected;
    bool stopped;
  } kCases[] = {
      {{"\n\n"}, "one\ntwo\n\nthree", "one\ntwo", true},
      {{"END"}, "the EN is no END of it", "the EN is no ", true},
      {{"abc", "b"}, "xxabc", "xxa", true},  // "b" is complete first
      {{"bc", "abc"}, "xxabc", "xx", true},  // complete together: the longest
      {{"aab"}, "aaaab", "aa", true},
      {{"never"}, "text neve", "text neve", false},
      {{"x"}, "x", "", true},
      {{}, "anything", "anything", false},
      {{"\xF0\x9F\x98\x80"}, "a\xF0\x9F\x98\x81 b\xF0\x9F\x98\x80z", "a\xF0\x9F\x98\x81 b", true},
  };
  for (const auto& c : kCases) {
    for (size_t n = 1; n <= c.text.size(); ++n) {
      bool stopped = false;
      EXPECT_EQ(cut(c.stops, c.text, n, &stopped), c.expected) << c.text << " by " << n;
      EXPECT_EQ(stopped, c.stopped) << c.text << " by " << n;
    }
  }
}

TEST(Stop, HoldsBackNoMoreThanAPrefix) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("a st"), "a ");
  EXPECT_EQ(matcher.push("ay"), "stay");
  EXPECT_EQ(matcher.push(" sto"), " ");
  EXPECT_EQ(matcher.finish(), "sto");
}

}  // namespace
}  // namespace replayssm::server
