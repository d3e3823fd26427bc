// Equality with the `tokenizers` library, whose answers are in tests/data/tokenizer.
#include <gtest/gtest.h>

#include <algorithm>

#include "testing.h"

namespace replayssm::model::testing {
namespace {

using nlohmann::json;

// Names the first place where the two differ.
void expect_equal_ids(const std::vector<int32_t>& got, const std::vector<int32_t>& want) {
  const auto [g, w] = std::mismatch(got.begin(), got.end(), want.begin(), want.end());
  EXPECT_TRUE(g == got.end() && w == want.end())
      << "token " << g - got.begin() << ": got " << (g == got.end() ? -1 : *g) << " of "
      << got.size() << ", want " << (w == want.end() ? -1 : *w) << " of " << want.size();
}

TEST(TokenizerGolden, Qwen3Strings) {
  const json cases = json::parse(read_xz("qwen3_golden.json"));
  EXPECT_EQ(cases.size(), 6000u);
  size_t n_equal = 0;
  for (const json& item : cases) {
    const auto text = item[0].get<std::string>();
    const auto want = item[1].get<std::vector<int32_t>>();
    const std::vector<int32_t> got = qwen3().encode(text);
    n_equal += got == want;
    if (got != want) ADD_FAILURE() << "differs: " << item[0].dump(-1, ' ', true);
  }
  EXPECT_EQ(n_equal, cases.size());
}

TEST(TokenizerGolden, Qwen3Corpus) {
  expect_equal_ids(qwen3().encode(read_xz("corpus.bin")), read_ids("qwen3.ids"));
}

TEST(TokenizerGolden, Qwen3CorpusAgainFromItsCache) {
  const std::string corpus = read_xz("corpus.bin");
  const std::vector<int32_t> want = read_ids("qwen3.ids");
  for (int i = 0; i < 2; ++i) expect_equal_ids(qwen3().encode(corpus), want);
}

TEST(TokenizerGolden, DemoCorpus) {
  expect_equal_ids(demo().encode(read_xz("corpus.bin")), read_ids("demo.ids"));
}

// Every kind of pre-tokenizer, normalizer and added token that is taken, one by one.
TEST(TokenizerGolden, Variants) {
  const json fixture = json::parse(read_xz("variants.json"));
  size_t n_cases = 0;
  for (const json& variant : fixture["variants"]) {
    json file = fixture["base"];
    file.update(variant["change"]);
    const Tokenizer tokenizer = small(file);
    for (const json& item : variant["cases"]) {
      const auto text = item[0].get<std::string>();
      for (const bool parse_special : {true, false}) {
        const json& want = parse_special ? item[1] : item.back();
        EXPECT_EQ(tokenizer.encode(text, parse_special), want.get<std::vector<int32_t>>())
            << variant["name"] << (parse_special ? "" : ", special tokens as text") << ": "
            << item[0].dump(-1, ' ', true);
        ++n_cases;
      }
    }
  }
  EXPECT_GT(n_cases, 2000u);
}

}  // namespace
}  // namespace replayssm::model::testing
