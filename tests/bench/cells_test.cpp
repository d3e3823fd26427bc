// The yardstick of bench_kernels: its floors are those that the targets were set by.
#include "bench/kernels/cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace replayssm::bench {
namespace {

const LayerShape& shape_of(const std::string& name) {
  const auto& shapes = layer_shapes();
  return *std::find_if(shapes.begin(), shapes.end(),
                       [&](const LayerShape& shape) { return shape.name == name; });
}

double floor_of(const char* shape, DType dtype, int window, int batch) {
  return floor_us(
      must_move_bytes({&shape_of(shape), dtype, StateMethod::kReplay, window, batch, 16}));
}

TEST(Cells, FloorsAreThoseOfThePublishedTable) {
  // Microseconds on an H200 with B = 16; gates in fp32 add up to 0.1.
  EXPECT_NEAR(floor_of("qw4b", DType::kF32, 1, 1024), 534, 1);
  EXPECT_NEAR(floor_of("qw4b", DType::kF16, 8, 256), 98.0, 0.2);
  EXPECT_NEAR(floor_of("qw4b", DType::kI8, 4, 32), 8.1, 0.05);
  EXPECT_NEAR(floor_of("nano30b", DType::kF32, 4, 256), 154, 0.5);
  EXPECT_NEAR(floor_of("nano4b", DType::kI8, 1, 256), 71.7, 0.2);
  EXPECT_NEAR(floor_of("qw122b", DType::kF16, 1, 1), 2.5, 0.05);
  EXPECT_NEAR(floor_of("granite", DType::kF16, 8, 1024), 714, 1);
}

TEST(Cells, BaselinesMoveTheStateAsTheirMethodsSay) {
  const double state = 524288.0 * 4, slack = 0.03 * state;  // inputs and outputs
  const auto bytes = [&](StateMethod way, int window) {
    return must_move_bytes({&shape_of("nano30b"), DType::kF32, way, window, 1, 16});
  };
  EXPECT_NEAR(bytes(StateMethod::kPlain, 1), 2 * state, slack);
  EXPECT_NEAR(bytes(StateMethod::kSnapshots, 4), 5 * state, 4 * slack);
  EXPECT_NEAR(bytes(StateMethod::kActivationReplay, 4), 3 * state, 8 * slack);
  EXPECT_NEAR(bytes(StateMethod::kJointAdvance, 4), 2 * state, 8 * slack);
}

TEST(Cells, TheHeadlineIsAPartOfAllAndNamesAreUnique) {
  std::set<std::string> all, headline;
  size_t n = 0;
  for (const LayerShape& shape : layer_shapes()) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
      for (const Cell& cell : cells_of(shape, dtype, 16, false)) {
        all.insert(cell.name());
        ++n;
        // A ring that a step may use: see docs/contract.md.
        const Problem p = cell.problem();
        EXPECT_GE(p.grid.ring_rows, Grid::rows_for(16, p.max_window));
        EXPECT_EQ(p.max_window, cell.sweep ? 1 : cell.window);
        EXPECT_LE(accepted_of(cell.window), cell.window);
      }
      for (const Cell& cell : cells_of(shape, dtype, 16, true)) headline.insert(cell.name());
    }
  }
  EXPECT_EQ(all.size(), n);
  EXPECT_TRUE(std::includes(all.begin(), all.end(), headline.begin(), headline.end()));
  EXPECT_TRUE(headline.contains("qw4b/fp16/replay/T8/B256"));
}

}  // namespace
}  // namespace replayssm::bench
