// Large batches on the device: the same bits over many launches, in any row order, cut into any
// batches, out of a graph; and nothing is touched that no row owns.
#include <gtest/gtest.h>

#include <set>

#include "cuda_cases.h"
#include "device_layer.h"
#include "replay/cuda/sequence_cuda.h"

namespace replayssm::test {
namespace {

constexpr int kRows = 900;

class Launches : public testing::TestWithParam<Case> {
 protected:
  const Problem& problem() const { return GetParam().problem; }
};

// Few heads, so that pools of 900 rows are small; fp32 activations are too slow for so many.
std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Case& c : unique({cuda_core(), cuda_entries(/*persistent=*/true)})) {
    Problem p = c.problem;
    if (p.activation == DType::kF32) continue;
    const int ratio = p.n_heads / p.n_key_heads;
    p.n_key_heads = p.family == Family::kKda ? 2 : 1;
    p.n_heads = p.family == Family::kKda ? 2 : ratio;
    out.push_back(case_of(p));
  }
  return with_plan(out);
}

using Names = std::vector<std::string>;
const Names kNone;

TEST_P(Launches, TwentyTimesTheSameBits) {
  DeviceLayer layer(problem(), kRows, 1);
  layer.reset();
  layer.step(layer.rows());
  layer.keep();
  for (int launch = 1; launch < 20; ++launch) {
    layer.reset();
    layer.step(layer.rows());
    ASSERT_EQ(layer.changes(), kNone) << "launch " << launch;
  }
  // That the comparison sees a step.
  layer.reset();
  Names stepped = {"outputs", "checkpoints", "ring keys", "ring values", "ring gates"};
  if (problem().checkpoint == DType::kI8) stepped.insert(stepped.begin() + 2, "scales");
  EXPECT_EQ(layer.changes(), stepped);
}

// So that a row alone, too, gives what it gives among all.
TEST_P(Launches, RowOrderAndBatchSizeDoNotMatter) {
  DeviceLayer layer(problem(), kRows, 2);
  layer.reset();
  layer.step(layer.rows());
  layer.keep();
  std::vector<Row> rows = layer.rows();
  std::mt19937 rng(3);
  for (const size_t batch : {rows.size(), size_t{97}, size_t{8}, size_t{1}}) {
    std::shuffle(rows.begin(), rows.end(), rng);
    layer.reset();
    layer.step(rows, batch);
    EXPECT_EQ(layer.changes(), kNone) << "batches of " << batch;
  }
}

// Skipped rows' outputs, the holes between rows' tokens, and slots that no row writes.
TEST_P(Launches, NothingElseIsWritten) {
  const Problem& p = problem();
  DeviceLayer layer(p, kRows, 4);
  layer.reset();
  const DeviceLayer::Bytes before = layer.bytes();
  layer.step(layer.rows());
  const DeviceLayer::Bytes after = layer.bytes();
  std::vector<bool> owned(after.out.size());
  std::set<int> written, rings;
  for (const Row& row : layer.rows()) {
    if (row.read_slot < 0) continue;
    const int64_t token = int64_t{p.n_heads} * p.value_dim * dtype_bytes(p.activation);
    std::fill_n(owned.begin() + row.token * token, row.n_tokens * token, true);
    if (p.grid.fold_pending(row.n, row.c)) written.insert(row.write_slot);
    if (row.n_tokens > 0) rings.insert(row.ring_slot);
  }
  for (size_t i = 0; i < owned.size(); ++i) {
    ASSERT_TRUE(owned[i] || after.out[i] == 0xff) << "byte " << i << " of the outputs";
  }
  const auto expect_rest = [](const std::vector<uint8_t>& a, const std::vector<uint8_t>& b,
                              const std::set<int>& changed, int n_slots, const char* what) {
    const int64_t size = static_cast<int64_t>(a.size()) / n_slots;
    for (int slot = 0; slot < n_slots; ++slot) {
      const auto* x = a.data() + slot * size;
      const auto* y = b.data() + slot * size;
      ASSERT_TRUE(changed.count(slot) != 0 || std::memcmp(x, y, size) == 0) << what << slot;
    }
  };
  const int n_slots = 3 * kRows;
  expect_rest(before.checkpoint, after.checkpoint, written, n_slots, "checkpoint slot ");
  expect_rest(before.ring_key, after.ring_key, rings, n_slots, "ring key slot ");
  expect_rest(before.ring_value, after.ring_value, rings, n_slots, "ring value slot ");
  expect_rest(before.ring_gate, after.ring_gate, rings, n_slots, "ring gate slot ");
  ASSERT_FALSE(written.empty());
}

// With and without the early fetch, behind a kernel that has nothing to do with the step.
TEST_P(Launches, GraphEqualsEager) {
  const Problem& p = problem();
  DeviceLayer layer(p, kRows, 5);
  layer.reset();
  layer.step(layer.rows());
  layer.keep();

  const DeviceBuffer rows(layer.rows()), skipped(std::vector<Row>(1));
  CommitArgs before;
  before.rows = static_cast<const Row*>(skipped.data());
  before.n_rows = 1;
  for (const bool early : {false, true}) {
    SCOPED_TRACE(early);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cuda_check(cudaStreamCreate(&stream), "stream");
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    commit_cuda(p.grid, before, stream);
    layer.plan().step(layer.args(static_cast<const Row*>(rows.data()), kRows), stream,
                      {.early = early});
    cuda_check(cudaStreamEndCapture(stream, &graph), "capture");
    cuda_check(cudaGraphInstantiate(&executable, graph, 0), "graph");
    for (int replay = 0; replay < 3; ++replay) {
      layer.reset();
      cuda_check(cudaGraphLaunch(executable, stream), "graph");
      cuda_check(cudaStreamSynchronize(stream), "graph");
      EXPECT_EQ(layer.changes(), kNone);
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Launches, testing::ValuesIn(cases()), test_name);

}  // namespace
}  // namespace replayssm::test
