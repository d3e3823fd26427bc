// Broken and unsupported tokenizer.json files: one clear line each.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "core/error.h"
#include "testing.h"

namespace replayssm::model::testing {
namespace {

using nlohmann::json;

// `text` is refused in one line that begins with the file's name and holds `what`.
void expect_refused(const std::string& text, const std::string& what) {
  try {
    Tokenizer::parse(text, "small.json");
    ADD_FAILURE() << "taken; expected: " << what;
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find("small.json: "), 0u) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message << "\nexpected: " << what;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 400u) << message;
  }
}

// The small file with one value replaced.
void expect_refused_at(const std::string& pointer, const json& value, const std::string& what) {
  json file = small_json();
  file[json::json_pointer(pointer)] = value;
  expect_refused(file.dump(), what);
}

json added(const json& content, const json& id) {
  return json::array({{{"content", content}, {"id", id}}});
}

TEST(TokenizerRefusals, NotJson) {
  const std::string whole = small_json().dump();
  expect_refused("", "not valid JSON");
  expect_refused("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer");
  expect_refused(whole.substr(0, whole.size() - 1), "not valid JSON");
  expect_refused(whole.substr(0, whole.size() / 2), "not valid JSON");
  expect_refused("{\"a\": \"\xFF\"}", "not valid JSON");
  expect_refused("{\"a\": \"\\ud800\"}", "not valid JSON");
  expect_refused("{\"a\": 4e4444}", "holds a number out of range");
  expect_refused("[]", "must be a JSON object");
  expect_refused("{}", "model: is missing");
  expect_refused(std::string(100000, '['), "nested deeper");
  expect_refused("{\"model\":" + std::string(200, '[') + std::string(200, ']') + "}",
                 "nested deeper");
}

TEST(TokenizerRefusals, Model) {
  expect_refused_at("/model", 3, "model: must be an object");
  expect_refused_at("/model/type", "Unigram", "model.type: \"Unigram\" is not supported");
  expect_refused_at("/model/type", 1, "model.type: must be a string");
  expect_refused_at("/model/type", "a\nb", "model.type: \"a\\x0Ab\"");
  expect_refused_at("/model/byte_fallback", true, "model.byte_fallback");
  expect_refused_at("/model/byte_fallback", "yes", "must be true or false");
  expect_refused_at("/model/dropout", 0.1, "model.dropout");
  expect_refused_at("/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix");
  expect_refused_at("/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix");
  expect_refused_at("/model/vocab", json::array(), "model.vocab: must be an object");
  expect_refused_at("/model/merges", "a b", "model.merges: must be an array");
}

TEST(TokenizerRefusals, Ids) {
  expect_refused_at("/model/vocab/ab", -1, "the id -1 is not in 0 .. ");
  expect_refused_at("/model/vocab/ab", 1LL << 40, "the id 1099511627776 is not in");
  expect_refused_at("/model/vocab/ab", UINT64_MAX, "is not in 0 .. ");
  expect_refused_at("/model/vocab/ab", 1.5, "the id of \"ab\" must be an integer");
  expect_refused_at("/model/vocab/ab", "256", "the id of \"ab\" must be an integer");
  expect_refused_at("/model/vocab/ab", nullptr, "must be an integer");
  expect_refused_at("/model/vocab/ab", 257, "\"abc\" has the id 257 of \"ab\"");
  json file = small_json();
  file["model"]["vocab"].erase("x");
  file["model"]["unk_token"] = "<unk>";
  expect_refused(file.dump(), "model.unk_token: \"<unk>\" is not in model.vocab");
}

TEST(TokenizerRefusals, Merges) {
  for (const json& bad :
       {json("ab"), json("a b c"), json(" b"), json(""), json(3), json::array({"a"}),
        json::array({"a", "b", "c"}), json::array({"a", 1}), json(nullptr)}) {
    expect_refused_at("/model/merges/1", bad, "model.merges[1]: must be \"left right\"");
  }
  expect_refused_at("/model/merges/1", "a zz", "model.merges[1]: \"zz\" is not in model.vocab");
  expect_refused_at("/model/merges/1", "a c", "model.merges[1]: \"ac\" is not in model.vocab");
}

TEST(TokenizerRefusals, AddedTokens) {
  expect_refused_at("/added_tokens", added("<x>", 256), "\"<x>\" has the id 256 of \"ab\"");
  expect_refused_at("/added_tokens", added("ab", 300),
                    "\"ab\" has the id 300 here and 256 elsewhere");
  expect_refused_at("/added_tokens", added("<x>", -5), "added_tokens[0].id: the id -5");
  expect_refused_at("/added_tokens", added("", 300), "added_tokens[0].content: is empty");
  expect_refused_at("/added_tokens", added(std::string(5000, 'x'), 300), "is longer than");
  expect_refused_at("/added_tokens", added(7, 300), "added_tokens[0].content: must be a string");
  expect_refused_at("/added_tokens", json::array({3}), "added_tokens[0]: must be an object");
  expect_refused_at("/added_tokens", "x", "added_tokens: must be an array");
}

TEST(TokenizerRefusals, Steps) {
  expect_refused_at("/normalizer", {{"type", "NFKC"}},
                    "normalizer.type: \"NFKC\" is not supported");
  expect_refused_at("/normalizer",
                    {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}},
                    "normalizer.normalizers[0].type: \"Lowercase\"");
  expect_refused_at("/pre_tokenizer", nullptr, "pre_tokenizer: has no ByteLevel");
  expect_refused_at("/pre_tokenizer", {{"type", "Metaspace"}}, "pre_tokenizer.type: \"Metaspace\"");
  const json byte_level = small_json()["pre_tokenizer"];
  const auto sequence = [&](const json& first) {
    return json{{"type", "Sequence"}, {"pretokenizers", {first, byte_level}}};
  };
  expect_refused_at("/pre_tokenizer", sequence(byte_level), "a second ByteLevel");
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "a"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const auto changed = [&](const char* pointer, const json& value) {
    json copy = split;
    copy[json::json_pointer(pointer)] = value;
    return sequence(copy);
  };
  const std::string where = "pre_tokenizer.pretokenizers[0]";
  expect_refused_at("/pre_tokenizer", changed("/behavior", "MergedWithNext"), where + ".behavior");
  expect_refused_at("/pre_tokenizer", changed("/behavior", "Removed"), "Removed with invert false");
  expect_refused_at("/pre_tokenizer", changed("/invert", true), "Isolated with invert true");
  expect_refused_at("/pre_tokenizer", changed("/pattern/Regex", "("), where + ": bad pattern: ");
  expect_refused_at("/pre_tokenizer", changed("/pattern/Regex", "\\w"),
                    where + ".pattern.Regex: the escape");
  expect_refused_at("/pre_tokenizer", changed("/pattern", {{"String", ""}}),
                    where + ".pattern: is empty");
  expect_refused_at("/pre_tokenizer", changed("/pattern", json::object()), "must be a string");
  expect_refused_at("/decoder", nullptr, "decoder: is missing");
  expect_refused_at("/decoder", {{"type", "Metaspace"}}, "decoder.type: \"Metaspace\"");
  expect_refused_at("/post_processor", {{"type", "BertProcessing"}},
                    "post_processor.cls: must be an array");
  expect_refused_at("/post_processor",
                    {{"type", "RobertaProcessing"}, {"cls", {"<s>", 999}}, {"sep", {"</s>", 1}}},
                    "post_processor.cls[1]: there is no token 999");
  expect_refused_at("/post_processor", {{"type", "Metaspace"}},
                    "post_processor.type: \"Metaspace\"");
}

TEST(TokenizerRefusals, Templates) {
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json special = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const auto refuse = [&](const json& single, const json& ids, const std::string& what) {
    expect_refused_at("/post_processor",
                      {{"type", "TemplateProcessing"},
                       {"single", single},
                       {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", ids}}}}}},
                      what);
  };
  refuse({text, text}, {1}, "post_processor.single[1]: a second Sequence");
  refuse(json::array(), {1}, "post_processor.single: has no Sequence");
  refuse({special, text}, {999}, "there is no token 999");
  refuse({special, text}, {-1}, "the id -1");
  refuse({special, text}, "1", "post_processor.special_tokens[\"<s>\"].ids: must be an array");
  refuse({{{"SpecialToken", {{"id", "<t>"}}}}, text}, {1}, "\"<t>\" is not declared");
  const json marks = {{"type", "BertProcessing"}, {"cls", {"a", 97}}, {"sep", {"b", 98}}};
  expect_refused_at("/post_processor", {{"type", "Sequence"}, {"processors", {marks, marks}}},
                    "post_processor.processors[1]: a second processor that adds tokens");
}

TEST(TokenizerRefusals, Files) {
  EXPECT_THROW(Tokenizer::load("/nonexistent/tokenizer.json"), Error);
  EXPECT_THROW(Tokenizer::load(std::filesystem::temp_directory_path().string()), Error);
  try {
    Tokenizer::load("/nonexistent/tokenizer.json");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "/nonexistent/tokenizer.json: cannot open");
  }
}

TEST(TokenizerRefusals, ButGapsAndOldFilesAreTaken) {
  json file = small_json();
  file["model"]["vocab"]["ab"] = 5000;
  file["model"].erase("type");
  file["model"]["unk_token"] = "";
  file["model"]["merges"] = json::array({json::array({"a", "b"}), json::array({"ab", "c"})});
  const Tokenizer tokenizer = small(file);
  EXPECT_EQ(tokenizer.vocab_size(), 5001);
  EXPECT_EQ(tokenizer.encode("ab"), std::vector<int32_t>{5000});
  EXPECT_EQ(tokenizer.token_bytes(4000), "");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{4000, 5000}), "ab");
}

}  // namespace
}  // namespace replayssm::model::testing
