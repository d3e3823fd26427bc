// What holds of any text: round trips, streams, threads, sizes.
#include <gtest/gtest.h>

#include <array>
#include <ctime>
#include <random>
#include <thread>

#include "model/tokenizer/normalizer.h"
#include "testing.h"

namespace replayssm::model::testing {
namespace {

using nlohmann::json;

std::string nfc(const std::string& text) {
  std::string buffer;
  return std::string(normalize(Normalization::kNfc, text, buffer));
}

json added_token(const std::string& content, int32_t id, bool special) {
  return {{"content", content}, {"id", id},        {"special", special},  {"normalized", false},
          {"lstrip", false},    {"rstrip", false}, {"single_word", false}};
}

TEST(Tokenizer, DecodesWhatItEncoded) {
  std::mt19937 random(1);
  const json cases = json::parse(read_xz("qwen3_golden.json"));
  for (const json& item : cases) {
    const auto text = item[0].get<std::string>();
    for (const bool parse_special : {true, false}) {
      const std::string back = qwen3().decode(qwen3().encode(text, parse_special));
      // Normalization stops at added tokens, so text with such a token has its own form.
      EXPECT_EQ(nfc(back), nfc(text));
      if (back == text) continue;
      EXPECT_EQ(qwen3().decode(qwen3().encode(back, parse_special)), back);
    }
  }
}

TEST(Tokenizer, DecodesNormalizedTextUnchanged) {
  const std::string corpus = nfc(to_valid_utf8(read_xz("corpus.bin")));
  EXPECT_EQ(qwen3().decode(qwen3().encode(corpus, false)), corpus);
}

TEST(Tokenizer, EmptyTextHasNoTokens) {
  EXPECT_TRUE(demo().encode("").empty());
  EXPECT_EQ(demo().decode({}), "");
}

TEST(Tokenizer, StreamEqualsWhole) {
  std::mt19937 random(2);
  std::uniform_int_distribution<int32_t> any_id(-3, demo().vocab_size() + 3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids(random() % 20);
    for (int32_t& id : ids) {
      // Single bytes (ids 0 to 255) are rich in halves of characters.
      id = random() % 3 ? static_cast<int32_t>(random() % 256) : any_id(random);
    }
    StreamDecoder stream(demo());
    std::string text;
    for (const int32_t id : ids) {
      const std::string part = stream.push(id);
      EXPECT_TRUE(is_valid_utf8(part));
      text += part;
    }
    text += stream.finish();
    EXPECT_EQ(text, to_valid_utf8(demo().decode(ids)));
    EXPECT_EQ(stream.finish(), "");
  }
}

TEST(Tokenizer, StreamHoldsBackHalfACharacter) {
  const Tokenizer tokenizer = small(small_json());
  const std::vector<int32_t> ids = tokenizer.encode("a😀b");
  ASSERT_EQ(ids.size(), 6u);
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(ids[0]), "a");
  EXPECT_EQ(stream.push(ids[1]), "");
  EXPECT_EQ(stream.push(ids[2]), "");
  EXPECT_EQ(stream.push(ids[3]), "");
  EXPECT_EQ(stream.push(ids[4]), "😀");
  EXPECT_EQ(stream.push(ids[1]), "");
  EXPECT_EQ(stream.push(ids[5]), "\uFFFDb");
  EXPECT_EQ(stream.push(ids[1]), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(Utf8, EveryCuttingOfAStreamGivesTheSame) {
  std::mt19937 random(3);
  constexpr std::array<uint8_t, 16> kBytes = {0x41, 0x80, 0xBF, 0xC2, 0xC3, 0xE0, 0xE2, 0xED,
                                              0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0x9F, 0xA0, 0x90};
  for (int round = 0; round < 5000; ++round) {
    std::string bytes(random() % 12, '\0');
    for (char& byte : bytes) byte = static_cast<char>(kBytes[random() % kBytes.size()]);
    const std::string whole = to_valid_utf8(bytes);
    EXPECT_TRUE(is_valid_utf8(whole));
    EXPECT_EQ(is_valid_utf8(bytes), whole == bytes);
    Utf8Stream stream;
    std::string text;
    for (size_t pos = 0; pos < bytes.size();) {
      const size_t n_bytes = 1 + random() % 4;
      text += stream.push(std::string_view(bytes).substr(pos, n_bytes));
      pos += n_bytes;
    }
    EXPECT_EQ(text + stream.finish(), whole);
  }
}

// The right-hand sides are Python's bytes.decode("utf-8", errors="replace").
TEST(Utf8, ReplacesMaximalSubparts) {
  const std::array<std::pair<std::string, std::string>, 9> cases = {{
      {"a\xFFz", "a\uFFFDz"},
      {"\xE2\x82", "\uFFFD"},
      {"\xE2\x82z", "\uFFFDz"},
      {"\xF0\x9F\x98", "\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xC0\xAF", "\uFFFD\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xE2\x28\xA1", "\uFFFD(\uFFFD"},
      {"\xF0\x9F\xF0\x9F\x98\x80", "\uFFFD😀"},
  }};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(to_valid_utf8(bytes), text);
    EXPECT_EQ(demo().encode(bytes), demo().encode(text));
  }
}

TEST(Tokenizer, RunsOfOneCharacterTakeNoQuadraticTime) {
  constexpr size_t kBytes = 1 << 20;
  const std::clock_t begin = std::clock();
  for (const std::string unit : {"a", " ", "0", "\xFF", "語", "<|"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    const std::vector<int32_t> ids = qwen3().encode(text);
    EXPECT_EQ(qwen3().decode(ids), to_valid_utf8(text)) << unit;
  }
  // Of processor time some 4; quadratic would take hours.
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 300);
}

TEST(Tokenizer, MergesLongWordsAsShortOnes) {
  // "abcabc..." in one word: below and above the length at which the algorithm changes.
  json file = small_json();
  file["pre_tokenizer"]["use_regex"] = false;
  const Tokenizer tokenizer = small(file);
  for (size_t n = 1; n < 60; ++n) {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += "abc";
    EXPECT_EQ(tokenizer.encode(text), std::vector<int32_t>(n, 257));
    EXPECT_EQ(tokenizer.encode(text + "a").back(), 'a' - 33 + tokenizer.id_of("!").value());
  }
}

TEST(Tokenizer, FindsAddedTokensSideBySide) {
  json file = small_json();
  file["added_tokens"] = {added_token("<x>", 300, true), added_token("<x><y>", 301, false),
                          added_token("<y>", 302, true)};
  const Tokenizer tokenizer = small(file);
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(tokenizer.vocab_size(), 303);
  EXPECT_EQ(tokenizer.encode("<x>"), Ids({300}));
  EXPECT_EQ(tokenizer.encode("<x><x>"), Ids({300, 300}));
  EXPECT_EQ(tokenizer.encode("<x><y>"), Ids({301}));
  EXPECT_EQ(tokenizer.encode("<y><x><y><x>abc"), Ids({302, 301, 300, 257}));
  EXPECT_EQ(tokenizer.encode("<x<x>>").size(), 4u);
  // As text, only the token that is not special is found.
  EXPECT_EQ(tokenizer.encode("<x>", false).size(), 3u);
  EXPECT_EQ(tokenizer.encode("<x><y>", false), Ids({301}));
  EXPECT_EQ(tokenizer.decode(Ids{300, 257, 301, 302}), "<x>abc<x><y><y>");
  EXPECT_EQ(tokenizer.decode(Ids{300, 257, 301, 302}, true), "abc<x><y>");
  EXPECT_TRUE(tokenizer.is_special(300));
  EXPECT_FALSE(tokenizer.is_special(301));
  EXPECT_FALSE(tokenizer.is_special(-1));
  const std::vector<int32_t> special(tokenizer.special_ids().begin(),
                                     tokenizer.special_ids().end());
  EXPECT_EQ(special, Ids({300, 302}));
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer = small(small_json());
  EXPECT_EQ(tokenizer.vocab_size(), 259);
  EXPECT_EQ(tokenizer.id_of("Ġa"), 258);
  EXPECT_EQ(tokenizer.id_of(" a"), std::nullopt);
  EXPECT_EQ(tokenizer.id_of(""), std::nullopt);
  EXPECT_EQ(tokenizer.token_bytes(258), " a");
  EXPECT_EQ(tokenizer.token_bytes(255), "\xFF");
  for (const int32_t id : {-1, 259, INT32_MAX, INT32_MIN}) EXPECT_EQ(tokenizer.token_bytes(id), "");
}

TEST(Tokenizer, AddedTokensStandForTheTextTheyWereFoundAs) {
  // Bytes of "é" as byte characters would be one byte; as text they are two.
  json file = small_json();
  file["added_tokens"] = {added_token("<é >", 300, false)};
  const Tokenizer tokenizer = small(file);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a<é >b")), "a<é >b");
  EXPECT_EQ(tokenizer.token_bytes(300), "<é >");
}

TEST(Tokenizer, TellsWhatATemplateAdds) {
  json file = small_json();
  file["added_tokens"] = {added_token("<s>", 300, true), added_token("</s>", 301, true)};
  const json special = {
      {"<s>", {{"id", "<s>"}, {"ids", {300}}, {"tokens", {"<s>"}}}},
      {"</s>", {{"id", "</s>"}, {"ids", {301, 301}}, {"tokens", {"</s>", "</s>"}}}}};
  const json pattern = {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                        {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}};
  const json step = {{"type", "TemplateProcessing"},
                     {"single", pattern},
                     {"pair", pattern},
                     {"special_tokens", special}};
  file["post_processor"] = {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}, step}}};
  const Tokenizer tokenizer = small(file);
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(Ids(tokenizer.prefix_ids().begin(), tokenizer.prefix_ids().end()), Ids({300}));
  EXPECT_EQ(Ids(tokenizer.suffix_ids().begin(), tokenizer.suffix_ids().end()), Ids({301, 301}));
  EXPECT_EQ(tokenizer.encode("abc"), Ids({257}));
  EXPECT_EQ(tokenizer.encode_prompt("abc"), Ids({300, 257, 301, 301}));
  EXPECT_EQ(tokenizer.encode_prompt(""), Ids({300, 301, 301}));
  EXPECT_EQ(demo().encode_prompt("abc"), demo().encode("abc"));
}

// As `tokenizers` 0.23.2 has it.
TEST(Tokenizer, BertAndRobertaAddTheirMarks) {
  using Ids = std::vector<int32_t>;
  for (const char* type : {"BertProcessing", "RobertaProcessing"}) {
    json file = small_json();
    file["added_tokens"] = {added_token("<s>", 300, true), added_token("</s>", 301, true)};
    file["post_processor"] = {{"type", type}, {"cls", {"<s>", 300}}, {"sep", {"</s>", 301}}};
    EXPECT_EQ(small(file).encode_prompt("abc"), Ids({300, 257, 301})) << type;
    EXPECT_EQ(small(file).encode_prompt(""), Ids({300, 301})) << type;
  }
}

// A vocabulary without "x" and byte C3. The tokens are those that `tokenizers` 0.23.2 gives.
TEST(Tokenizer, BytesThatTheVocabularyLacks) {
  using Ids = std::vector<int32_t>;
  json file = small_json();
  file["model"]["vocab"].erase("x");
  file["model"]["vocab"].erase("Ã");
  const std::string long_word = std::string(60, 'x') + "abc";  // the heap's way
  const Tokenizer dropped = small(file);
  EXPECT_EQ(dropped.encode("axb"), Ids({256}));
  EXPECT_EQ(dropped.encode("xx"), Ids());
  EXPECT_EQ(dropped.encode("xx"), Ids()) << "by the cache of words";
  EXPECT_EQ(dropped.encode("a\nxxbc x"), Ids({97, 10, 98, 99, 32}));
  EXPECT_EQ(dropped.encode(long_word), Ids({257}));
  EXPECT_EQ(dropped.encode("aéb"), Ids({97, 169, 98}));
  file["model"]["vocab"]["<unk>"] = 259;
  file["model"]["unk_token"] = "<unk>";
  file["model"]["fuse_unk"] = false;
  const Tokenizer unknown = small(file);
  EXPECT_EQ(unknown.encode("axb"), Ids({97, 259, 98}));
  EXPECT_EQ(unknown.encode("a\nxxbc x"), Ids({97, 10, 259, 259, 98, 99, 32, 259}));
  EXPECT_EQ(unknown.encode(long_word).size(), 61u);
  EXPECT_EQ(unknown.encode("aéb"), Ids({97, 259, 169, 98}));
  file["model"]["fuse_unk"] = true;
  const Tokenizer fused = small(file);
  EXPECT_EQ(fused.encode("xx"), Ids({259}));
  EXPECT_EQ(fused.encode("a\nxxbc x"), Ids({97, 10, 259, 98, 99, 32, 259}));
  EXPECT_EQ(fused.encode(long_word), Ids({259, 257}));
}

TEST(Tokenizer, ManyThreadsMayEncodeAtOnce) {
  const std::string corpus = read_xz("corpus.bin").substr(0, 1 << 17);
  const std::vector<int32_t> want = demo().encode(corpus);
  std::array<std::vector<int32_t>, 8> got;
  std::vector<std::thread> threads;
  for (auto& ids : got) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) ids = demo().encode(corpus);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& ids : got) EXPECT_EQ(ids, want);
}

TEST(Tokenizer, MovesWhole) {
  Tokenizer first = small(small_json());
  const Tokenizer second = std::move(first);
  EXPECT_EQ(second.encode("abc ab"), (std::vector<int32_t>{257, 32, 256}));
  EXPECT_EQ(second.id_of("abc"), 257);
}

}  // namespace
}  // namespace replayssm::model::testing
