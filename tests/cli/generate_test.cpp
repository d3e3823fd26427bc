// generate: what it prints, and that drafts, K, grid threads and the rest leave the ids alone.
#include <nlohmann/json.hpp>

#include "model_folder.h"
#include "process.h"

namespace replayssm {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

struct Generated {
  std::string streamed;  // stdout without the JSON line
  json object;
  std::string report;  // stderr
};

Generated generate(const std::string& folder, const Arguments& more, const char* n = "60",
                   const char* prompt = "Hello there") {
  Arguments arguments = {"generate", "-m", folder, "-p", prompt, "-n", n, "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = run_binary(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  Generated out;
  out.report = outcome.err;
  if (outcome.out.empty() || outcome.out.back() != '\n') {
    ADD_FAILURE() << "stdout does not end with a line";
    return out;
  }
  const size_t line = outcome.out.rfind('\n', outcome.out.size() - 2);
  out.streamed = outcome.out.substr(0, line);
  out.object = json::parse(outcome.out.substr(line + 1));
  return out;
}

class Generate : public testing::TestWithParam<const char*> {
 protected:
  ModelFolder folder_{GetParam()};
};

TEST_P(Generate, TheLastLineIsTheJson) {
  const Generated got = generate(folder_.path(), {});
  const json& object = got.object;
  EXPECT_EQ(object.at("text").get<std::string>(), got.streamed);
  EXPECT_EQ(object.at("ids").size(), object.at("stats").at("new_tokens").get<size_t>());
  EXPECT_EQ(object.at("stats").at("prompt_tokens"), 11);
  for (const char* name :
       {"steps", "drafted", "accepted", "prefill_seconds", "decode_seconds", "state_bytes_read",
        "state_bytes_written", "state_bytes_plain", "saturated"}) {
    EXPECT_TRUE(object.at("stats").at(name).is_number()) << name;
  }
  for (const char* name : {"weights", "checkpoint", "ring", "conv", "kv", "scratch", "drafter"}) {
    EXPECT_TRUE(object.at("stats").at("memory").at(name).is_number()) << name;
  }
  for (const char* word : {"prefill", "decode", "tokens/s", "state", "memory", "weights", "KV"}) {
    EXPECT_NE(got.report.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(got.report.find("accepted"), std::string::npos) << "no drafts, no word of them";
}

TEST_P(Generate, WithoutJsonOnlyTheText) {
  const Outcome bare =
      run_binary({"generate", "-m", folder_.path(), "-p", "Hello there", "-n", "60"});
  EXPECT_EQ(bare.out, generate(folder_.path(), {}).streamed + "\n");
}

TEST_P(Generate, DraftsChangeNothing) {
  write_text(folder_.file("script.json"), "[[1,2,3],[4],[],[5,6,7,8,9,10,11,12]]");
  const ModelFolder stranger("nemotron_h_names");
  const std::vector<Arguments> drafts = {
      {"--draft", "off"},
      {"--draft", "ngram"},
      {"--draft", "ngram", "--draft-tokens", "7"},
      {"--draft", "script:" + folder_.file("script.json"), "--draft-tokens", "6"},
      {"--draft", stranger.path(), "--draft-tokens", "2"},
      {"--draft", folder_.path(), "--draft-tokens", "5", "--threads", "1"}};
  const std::vector<Arguments> settings = {
      {},
      {"--temperature", "0.8", "--seed", "18446744073709551615"},
      {"--temperature", "1.2", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.01", "--grid", "8"},
      {"--checkpoint-dtype", "int8", "--ring-dtype", "fp16", "--grid", "32"}};
  for (const auto& setting : settings) {
    const Generated want = generate(folder_.path(), setting);
    for (const auto& draft : drafts) {
      Arguments arguments = setting;
      arguments.insert(arguments.end(), draft.begin(), draft.end());
      const Generated got = generate(folder_.path(), arguments);
      EXPECT_EQ(got.object.at("ids"), want.object.at("ids")) << draft[1];
      EXPECT_EQ(got.streamed, want.streamed);
      const json& stats = got.object.at("stats");
      const bool drafts_here = draft[1] != "off";
      EXPECT_EQ(got.report.find("accepted") != std::string::npos, drafts_here);
      if (draft[1] == folder_.path()) {
        EXPECT_EQ(stats.at("accepted"), stats.at("drafted"));
        EXPECT_GT(stats.at("memory").at("drafter"), 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cli, Generate,
                         testing::Values("qwen3_5_tied", "qwen3_5_bf16", "nemotron_h_bf16"),
                         [](const auto& info) { return std::string(info.param); });

// A text with newlines and broken characters is streamed whole, and the JSON stays one line.
TEST(GenerateText, NewlinesAndBrokenCharacters) {
  const ModelFolder folder("qwen3_5_untied");
  bool newline = false, broken = false;
  for (int seed = 0; seed < 8 && !(newline && broken); ++seed) {
    const Generated got =
        generate(folder.path(), {"--temperature", "3", "--seed", std::to_string(seed)}, "200");
    EXPECT_EQ(got.object.at("text").get<std::string>(), got.streamed);
    newline = newline || got.streamed.find('\n') != std::string::npos;
    broken = broken || got.streamed.find("\xef\xbf\xbd") != std::string::npos;
  }
  EXPECT_TRUE(newline && broken);
}

// A model's own head drafts: nothing changes but the steps.
TEST(GenerateText, TheModelsOwnHead) {
  const std::string demo = REPLAYSSM_SOURCE_DIR "/models/demo-gdn";
  for (const Arguments& sampling :
       {Arguments{}, Arguments{"--temperature", "0.8", "--seed", "2"}}) {
    Arguments drafts = sampling;
    drafts.insert(drafts.end(), {"--draft", "mtp", "--draft-tokens", "3"});
    const char* prompt = "If the server cannot open a socket on the given port, it";
    const Generated want = generate(demo, sampling, "60", prompt),
                    got = generate(demo, drafts, "60", prompt);
    EXPECT_EQ(got.object.at("ids"), want.object.at("ids"));
    const json& stats = got.object.at("stats");
    EXPECT_GT(stats.at("accepted").get<int>(), 5);
    EXPECT_LT(stats.at("steps").get<int>(), want.object.at("stats").at("steps").get<int>());
    int accepted = 0;
    for (const json& count : stats.at("accepted_by_depth")) accepted += count.get<int>();
    EXPECT_EQ(accepted, stats.at("accepted").get<int>());
  }
}

// The context ends the text: 512 positions in the fixture.
TEST(GenerateText, TheContextIsTheEnd) {
  const ModelFolder folder("nemotron_h_bf16");
  write_text(folder.file("config.json"), replaced(read_text(folder.file("config.json")),
                                                  "\"eos_token_id\": 2", "\"eos_token_id\": 119"));
  const Outcome outcome = run_binary({"generate", "-m", folder.path(), "-p", std::string(500, 'x'),
                                      "-n", "1000000000", "--json", "--draft", "ngram"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const size_t line = outcome.out.rfind('\n', outcome.out.size() - 2);
  const json object = json::parse(outcome.out.substr(line + 1));
  EXPECT_LE(object.at("ids").size(), 12u);
  EXPECT_GE(object.at("ids").size(), 1u);
}

}  // namespace
}  // namespace replayssm
