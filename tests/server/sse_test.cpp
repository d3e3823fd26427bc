#include "server/http/sse.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace replayssm::server {
namespace {

using Events = std::vector<std::string>;

TEST(Sse, EventsHoweverTheyAreCut) {
  const std::string text =
      "\xef\xbb\xbf"
      "data: one\n\n"
      ": a comment\ndata:two\r\ndata:  lines\r\n\r\n"
      "event: other\nid: 7\ndata\n\n"
      "retry: 5\n\n"
      "data: three\r\rdata: unfinished\n";
  const Events want = {"one", "two\n lines", "", "three"};
  for (size_t step = 1; step <= text.size(); ++step) {
    SseParser parser;
    Events got;
    for (size_t i = 0; i < text.size(); i += step) {
      for (auto& event : parser.push(text.substr(i, step))) got.push_back(event);
    }
    EXPECT_EQ(got, want) << step;
  }
}

TEST(Sse, AnEventWithoutEndIsRefused) {
  SseParser parser(100);
  EXPECT_EQ(parser.push("data: " + std::string(90, 'x') + "\n\n").size(), 1u);
  EXPECT_TRUE(parser.push("data: " + std::string(50, 'x') + "\n").empty());
  EXPECT_THROW(parser.push("data: " + std::string(50, 'x')), Error);
}

}  // namespace
}  // namespace replayssm::server
