// replayssm-bench: its JSON, and what it refuses.
#include <nlohmann/json.hpp>

#include "../cli/help.h"
#include "../cli/process.h"

namespace replayssm {
namespace {

TEST(Bench, EveryFlagIsDocumented) {
  const Outcome help = run_bench({"--help"});
  EXPECT_EQ(help.exit_code, 0) << help.err;
  expect_documented(help.out, {"what", "--model", "--grid", "--batch", "--window", "--json",
                               "--threads", "serve", "simulate"});
}

TEST(Bench, LayersWriteJson) {
  const TempFolder folder;
  const Outcome got =
      run_bench({"layers", "--batch", "1", "--window", "1", "--json", folder.file("bench.json")});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  const auto json = nlohmann::json::parse(read_text(folder.file("bench.json")));
  EXPECT_GT(json.at("read_bytes_per_second"), 0);
  EXPECT_GE(json.at("threads"), 1);
  EXPECT_FALSE(json.contains("model"));
  EXPECT_EQ(json.at("layers").size(), 15u);  // three layers in five variants
  for (const auto& entry : json.at("layers")) {
    EXPECT_EQ(entry.at("batch"), 1);
    EXPECT_EQ(entry.at("window"), 1);
    EXPECT_GT(entry.at("us"), 0);
    EXPECT_GT(entry.at("must_move_bytes"), 0);
    EXPECT_NE(got.out.find(entry.at("layer").get<std::string>()), std::string::npos);
  }
}

TEST(Bench, ModelWritesJson) {
  const TempFolder folder;
  const Outcome got =
      run_bench({"model", "-m", fixture("nemotron_h_bf16"), "--batch", "1,3", "--window", "1,4",
                 "--grid", "8", "--json", folder.file("bench.json")});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  const auto json = nlohmann::json::parse(read_text(folder.file("bench.json")));
  EXPECT_EQ(json.at("model").size(), 20u);
  for (const auto& entry : json.at("model")) EXPECT_GT(entry.at("tokens_per_second"), 0);
}

TEST(Bench, ServeWritesJson) {
  const TempFolder folder;
  const Outcome got = run_bench({"serve", "--batch", "1,3", "--window", "1,4", "--context", "20",
                                 "--tokens", "32", "--json", folder.file("bench.json")});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  const auto json = nlohmann::json::parse(read_text(folder.file("bench.json")));
  ASSERT_EQ(json.at("cells").size(), 4u);
  for (const auto& cell : json.at("cells")) {
    EXPECT_GT(cell.at("tokens_per_second"), 0);
    EXPECT_GT(cell.at("ms"), 0);
    EXPECT_GE(cell.at("tokens_a_step"), 1);
    EXPECT_LE(cell.at("tokens_a_step"), cell.at("window"));
    EXPECT_EQ(cell.at("draft"), cell.at("window") == 1 ? "off" : "ngram");
    EXPECT_EQ(cell.at("drafted") > 0, cell.at("window") > 1);
  }
}

TEST(Bench, RefusesWrongUsage) {
  expect_bench_fails(2, {"everything"}, {"everything", "layers, model, all, serve or simulate"});
  expect_bench_fails(2, {"layers", "--batch", "0"}, {"--batch"});
  expect_bench_fails(2, {"layers", "--batch", "5000"}, {"--batch"});
  expect_bench_fails(2, {"layers", "--batch", "x"}, {"--batch"});
  expect_bench_fails(2, {"layers", "--window", "0"}, {"--window"});
  expect_bench_fails(2, {"layers", "--window", "1,17"}, {"--window"});
  expect_bench_fails(2, {"layers", "--grid", "7"}, {"--grid"});
  expect_bench_fails(2, {"serve", "--batch", "0"}, {"--batch"});
  expect_bench_fails(2, {"serve", "--window", "17"}, {"--window"});
  expect_bench_fails(2, {"serve", "--context", "1"}, {"--context"});
  expect_bench_fails(2, {"serve", "--tokens", "1"}, {"--tokens"});
  expect_bench_fails(2, {"serve", "--device", "tpu"}, {"--device"});
  // Refused before anything is timed.
  expect_bench_fails(1, {"model", "-m", "/no/such/model"}, {"/no/such/model"});
  expect_bench_fails(1, {"layers", "--json", "/no/such/folder/b.json"}, {"/no/such/folder/b.json"});
}

}  // namespace
}  // namespace replayssm
