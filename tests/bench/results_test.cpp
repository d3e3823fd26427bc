// A long measurement is resumed, never mixed with one of other sources.
#include "bench/kernels/results.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"

namespace replayssm::bench {
namespace {

class Shards : public testing::Test {
 protected:
  Shards() {
    folder_ = testing::TempDir() + "shards_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~Shards() override { std::filesystem::remove_all(folder_); }
  Shard open(const std::string& hash) const {
    return Shard(folder_, hash, shape_, DType::kF16, 16);
  }
  nlohmann::json read() const {
    std::ifstream file(folder_ + "/h200_" + shape_.name + "_fp16.json");
    return nlohmann::json::parse(file);
  }

  std::string folder_;
  const LayerShape& shape_ = layer_shapes()[0];
  const Cell first_{&shape_, DType::kF16, StateMethod::kReplay, 4, 32, 16};
  const Cell second_{&shape_, DType::kF16, StateMethod::kPlain, 1, 32, 16};
  const nlohmann::json run_ = run_json({"a card", "1.2", "13.0", 4e12, 4e12}, "bench_kernels");
};

TEST_F(Shards, MeasuredCellsAreThereInTheNextRunAndKeepTheirOwn) {
  open("abc").add(first_, {{"us", 12.5}}, run_);
  Shard again = open("abc");
  EXPECT_TRUE(again.has(first_));
  EXPECT_FALSE(again.has(second_));
  EXPECT_FALSE(again.failed(first_));
  nlohmann::json other = run_;
  other["card"] = "another";
  again.add(second_, {{"skipped", "no kernel"}}, other);
  const nlohmann::json file = read();
  ASSERT_EQ(file["cells"].size(), 2u);
  EXPECT_EQ(file["runs"].size(), 2u);
  for (const auto& cell : file["cells"]) {
    const bool is_first = cell["name"] == first_.name();
    EXPECT_EQ(file["runs"][cell["run"].get<size_t>()]["card"], is_first ? "a card" : "another");
  }
}

TEST_F(Shards, AFailureIsRemembered) {
  open("abc").add(first_, {{"failed", "an illegal memory access"}}, run_);
  EXPECT_TRUE(open("abc").failed(first_));
}

TEST_F(Shards, CellsOfOtherSourcesAreDropped) {
  open("abc").add(first_, {{"us", 12.5}}, run_);
  EXPECT_FALSE(open("def").has(first_));
  open("def").add(second_, {{"us", 3.0}}, run_);
  EXPECT_EQ(read()["cells"].size(), 1u);
}

TEST_F(Shards, AFileThatIsNoShardIsNamed) {
  std::ofstream(folder_ + "/h200_" + shape_.name + "_fp16.json") << "{\"cells\": 3}";
  try {
    open("abc");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("h200_qw4b_fp16.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace replayssm::bench
