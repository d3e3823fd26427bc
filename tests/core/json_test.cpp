// JSON from outside: the library's own values, in linear time, within limits.
#include "core/json.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace replayssm {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_json(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// An object of n different keys.
std::string keys(size_t n, const std::string& value = "1") {
  std::string text = "{";
  for (size_t i = 0; i < n; ++i) {
    text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":" + value;
  }
  return text + "}";
}

TEST(Json, ValuesAreTheLibrarys) {
  for (const std::string text :
       {R"({"b": 1, "a": [true, null, -2, 18446744073709551615, 1.5e3, "\u00e9\n", {}, []]})", "7",
        R"("text")", "[[[]]]", R"({"a": {"a": {"b": 1, "a": 2}}})", R"({"": ""})"}) {
    EXPECT_EQ(parse_json(text).dump(), Json::parse(text).dump());
  }
}

// As the library and Python read it: the first one's place, the last one's value.
TEST(Json, OfARepeatedKeyTheLastValueCounts) {
  EXPECT_EQ(parse_json(R"({"a":1,"b":2,"a":{"x":3},"c":4,"b":5})").dump(),
            R"({"a":{"x":3},"b":5,"c":4})");
  EXPECT_EQ(parse_json(R"([{"a":1,"a":2,"a":3}])").dump(), R"([{"a":3}])");
}

TEST(Json, RefusalsTakeOneLine) {
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "{\"a\":1}x", "\"\xff\"", "nul", "1e999",
                           "{\"a\":1}{}", "\"\n\"", "]", ",", "}{"}) {
    const std::string why = refusal(text);
    EXPECT_TRUE(why.starts_with("not JSON: ")) << text << ": " << why;
    EXPECT_EQ(why.find('\n'), std::string::npos);
  }
}

TEST(Json, SizesAreBoundedBeforeAnyValueIsMade) {
  EXPECT_EQ(parse_json(keys(kMaxJsonKeys)).size(), kMaxJsonKeys);
  EXPECT_NE(refusal(keys(kMaxJsonKeys + 1)).find("16384 keys"), std::string::npos);
  EXPECT_NE(refusal("[" + keys(80000)).find("16384 keys"), std::string::npos);
  std::string many = "[0";
  for (size_t i = 0; i < kMaxJsonValues; ++i) many += ",0";
  EXPECT_NE(refusal(many + "]").find("2097152 values"), std::string::npos);
  EXPECT_NE(refusal(std::string(kMaxJsonDepth + 1, '[')).find("deeper"), std::string::npos);
  // Text that looks like structure is text.
  EXPECT_EQ(parse_json("\"" + std::string(100000, '[') + "\"").get<std::string>().size(), 100000u);
}

}  // namespace
}  // namespace replayssm
