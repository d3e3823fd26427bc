// replayssm-bench simulate: what it puts together is what was measured and what must move.
#include <nlohmann/json.hpp>
#include <set>

#include "../cli/process.h"
#include "model/families/family.h"
#include "model/parameters.h"

namespace replayssm {
namespace {

using nlohmann::json;

const std::string kNano = REPLAYSSM_SOURCE_DIR "/models/geometries/nemotron-3-nano-30b-a3b.json";

// Measured layers of 64 heads: 10 us a row and more, or less, by way.
json layer_file(const char* dtype) {
  json file = {{"family", "Mamba-2"}, {"n_heads", 64},
               {"value_dim", 64},     {"key_dim", 128},
               {"dtype", dtype},      {"runs", {{{"card", "CARD"}, {"date", "DAY"}}}}};
  const auto add = [&](const char* way, int window, int accepted, double us) {
    for (const int batch : {1, 101}) {
      file["cells"].push_back({{"way", way},
                               {"window", window},
                               {"accepted", accepted},
                               {"batch", batch},
                               {"us", us * batch}});
    }
  };
  add("plain", 1, 1, 10);
  add("replay", 1, 1, 6);
  add("replay", 4, 3, 7);
  add("snapshots", 4, 3, 30);
  file["cells"].push_back(
      {{"way", "replay"}, {"window", 8}, {"batch", 1}, {"skipped", "no kernel"}});
  return file;
}

class Simulate : public ::testing::Test {
 protected:
  Simulate() { write_text(folder_.file("h200_x_fp32.json"), layer_file("fp32").dump()); }

  // The cell of the one way, window and batch.
  json run(const std::vector<std::string>& more, const std::string& way, int window) {
    std::vector<std::string> arguments = {
        "simulate", "--config", kNano, "--results", folder_.path(), "--json", folder_.file("out")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome got = run_bench(arguments);
    EXPECT_EQ(got.exit_code, 0) << got.err;
    EXPECT_TRUE(got.out.starts_with("SIMULATED")) << got.out;
    EXPECT_NE(got.out.find("DAY"), std::string::npos);
    const json file = json::parse(read_text(folder_.file("out")));
    EXPECT_EQ(file.at("simulated"), true);
    for (const auto& cell : file.at("cells")) {
      if (cell.at("way") == way && cell.at("window") == window) return cell;
    }
    ADD_FAILURE() << "no cell";
    return {};
  }

  TempFolder folder_;
};

TEST_F(Simulate, OneRowReadsTheActiveWeightsAndTheMeasuredLayers) {
  const auto count = count_parameters(describe_config(kNano).spec);
  const json plain = run({"--gpus", "1", "--batch", "1"}, "plain", 1);
  const double floor = 2.0 * static_cast<double>(count.active) / 4.55e12 * 1e3;
  EXPECT_NEAR(plain.at("weights_floor_ms"), floor, 0.001 * floor);
  EXPECT_NEAR(plain.at("weights_ms"), floor / 0.7, 0.002 * floor);
  EXPECT_NEAR(plain.at("state_ms"), 23 * 0.010, 1e-9);
  EXPECT_NEAR(plain.at("kv_floor_ms"), 1024 * 6144 / 4.55e12 * 1e3, 1e-9);
  EXPECT_EQ(plain.at("reduce_ms"), 0);
  EXPECT_EQ(plain.at("over_plain"), 1);
  const json fp8 = run({"--gpus", "1", "--batch", "1", "--weights", "fp8"}, "plain", 1);
  EXPECT_LT(fp8.at("weights_floor_ms"), 0.65 * floor);  // the head's 16 bits stay
}

TEST_F(Simulate, HeadsSplitAndStepsKeepWhatWasMeasured) {
  // 51 rows of 32 heads each are 25.5 rows of the measured layer
  const json replay = run({"--gpus", "2", "--batch", "51"}, "replay", 4);
  EXPECT_NEAR(replay.at("state_ms"), 23 * 7e-3 * 25.5, 1e-9);
  EXPECT_GT(replay.at("reduce_ms"), 0);
  const double ms = replay.at("weights_ms").get<double>() + replay.at("state_ms").get<double>() +
                    replay.at("kv_ms").get<double>() + replay.at("reduce_ms").get<double>() +
                    replay.at("rest_ms").get<double>();
  EXPECT_NEAR(replay.at("ms"), ms, 1e-9);
  EXPECT_NEAR(replay.at("tokens_per_second"), 51 * 3 / ms * 1e3, 1e-3);
  // two kv heads on four GPUs: each holds one
  const json two = run({"--gpus", "2", "--batch", "64"}, "plain", 1);
  const json four = run({"--gpus", "4", "--batch", "64"}, "plain", 1);
  EXPECT_EQ(two.at("kv_floor_ms"), four.at("kv_floor_ms"));
  EXPECT_NEAR(two.at("state_ms").get<double>(), 2 * four.at("state_ms").get<double>(), 1e-9);
  // four snapshots a sequence, or one checkpoint and a ring
  const json snapshots = run({"--gpus", "2", "--batch", "64"}, "snapshots", 4);
  EXPECT_GT(two.at("fits").get<int64_t>(), 3 * snapshots.at("fits").get<int64_t>());
}

// Other layers of such heads, measured at fewer batch sizes, or with other numbers of heads: no
// second row, and no say.
TEST_F(Simulate, OneRowOfLayersOfAKind) {
  json other = layer_file("fp32");
  json cells = json::array();
  for (json cell : other.at("cells")) {
    if (cell.at("batch") == 1) cells.push_back(cell);
  }
  for (json& cell : cells) {
    if (cell.contains("us")) cell["us"] = 1;
  }
  other["cells"] = cells;
  for (const char* name : {"h200_a_fp32.json", "h200_z_fp32.json"}) {
    write_text(folder_.file(name), other.dump());
  }
  other = layer_file("fp32");
  other["n_heads"] = 32;
  cells = other.at("cells");
  for (json& cell : cells) {
    if (!cell.contains("us")) continue;
    cell["us"] = 1;
    other["cells"].push_back(cell);
    other["cells"].back()["batch"] = cell.at("batch").get<int>() + 1;
  }
  write_text(folder_.file("h200_b_fp32.json"), other.dump());
  EXPECT_NEAR(run({"--gpus", "1", "--batch", "1"}, "replay", 4).at("state_ms"), 23 * 7e-3, 1e-9);
  std::set<std::pair<std::string, int>> rows;
  const json out = json::parse(read_text(folder_.file("out")));
  for (const auto& cell : out.at("cells")) {
    EXPECT_TRUE(rows.emplace(cell.at("way"), cell.at("window")).second) << cell;
  }
}

TEST_F(Simulate, Refusals) {
  const std::vector<std::string> base = {"simulate", "--config", kNano, "--results",
                                         folder_.path()};
  const auto fails = [&](int code, std::vector<std::string> more,
                         const std::vector<std::string>& parts) {
    more.insert(more.begin(), base.begin(), base.end());
    expect_bench_fails(code, more, parts);
  };
  fails(1, {"--gpus", "3"}, {"--gpus 3", "64 heads"});
  fails(2, {"--gpus", "65"}, {"--gpus", "0..64", "65"});
  fails(2, {"--batch", "0"}, {"--batch", "1..65536"});
  fails(2, {"--share", "-0.1"}, {"--share", "0..1", "-0.1"});
  fails(2, {"--share", "1.1"}, {"--share", "0..1", "1.1"});
  fails(2, {"--weights", "int4"}, {"--weights int4"});
  fails(2, {"--checkpoint", "int4"}, {"--checkpoint int4"});
  write_text(folder_.file("h200_y.json"), "{\"family\": \"GDN\"}");
  fails(1, {}, {"h200_y.json", "layer times"});
  const TempFolder empty;
  expect_bench_fails(1, {"simulate", "--config", kNano, "--results", empty.path()},
                     {empty.path(), "no layer times"});
  write_text(empty.file("h200_x.json"), layer_file("fp16").dump());
  expect_bench_fails(1, {"simulate", "--config", kNano, "--results", empty.path()},
                     {empty.path(), "no plain fp32", "64 x 128"});
}

}  // namespace
}  // namespace replayssm
