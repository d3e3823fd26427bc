// Large batches on the device: the same bits over many launches, in any row order, cut into any
// batches, out of a graph; and nothing is touched that no row owns.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "cuda_cases.h"
#include "device_layer.h"
#include "replay/cuda/sequence_cuda.h"

namespace replayssm::test {
namespace {

constexpr int kRows = 600;

class Launches : public testing::Test {
 protected:
  // Few heads, so that the pools of 600 rows can be compared on the host.
  std::vector<Problem> problems() const {
    std::vector<Problem> out;
    for (const Case& c : with_plan(cuda_core())) {
      Problem p = c.problem;
      if (p.activation == DType::kF32) continue;  // too slow for so many rows
      const int ratio = p.n_heads / p.n_key_heads;
      p.n_key_heads = p.family == Family::kKda ? 2 : 1;
      p.n_heads = p.family == Family::kKda ? 2 : ratio;
      if (plan_cuda(p).plan != nullptr) out.push_back(p);
    }
    return out;
  }
};

// Element-wise comparisons of megabytes print megabytes.
void expect_equal(const DeviceLayer::Bytes& a, const DeviceLayer::Bytes& b) {
  EXPECT_TRUE(a.out == b.out) << "outputs differ";
  EXPECT_TRUE(a.checkpoint == b.checkpoint) << "checkpoints differ";
  EXPECT_TRUE(a.scale == b.scale) << "scales differ";
  EXPECT_TRUE(a.ring_key == b.ring_key) << "ring keys differ";
  EXPECT_TRUE(a.ring_value == b.ring_value) << "ring values differ";
  EXPECT_TRUE(a.ring_gate == b.ring_gate) << "ring gates differ";
  EXPECT_TRUE(a.saturated == b.saturated) << "overflow counts differ";
}

TEST_F(Launches, TwentyTimesTheSameBits) {
  for (const Problem& p : problems()) {
    SCOPED_TRACE(name_of(p));
    DeviceLayer layer(p, kRows, 1);
    layer.reset();
    layer.step(layer.rows());
    const DeviceLayer::Bytes first = layer.bytes();
    for (int launch = 1; launch < 20; ++launch) {
      layer.reset();
      layer.step(layer.rows());
      expect_equal(first, layer.bytes());
      if (HasFailure()) return;
    }
  }
}

TEST_F(Launches, RowOrderAndBatchSizeDoNotMatter) {
  for (const Problem& p : problems()) {
    SCOPED_TRACE(name_of(p));
    DeviceLayer layer(p, kRows, 2);
    layer.reset();
    layer.step(layer.rows());
    const DeviceLayer::Bytes whole = layer.bytes();
    std::vector<Row> rows = layer.rows();
    std::mt19937 rng(3);
    for (const size_t batch : {rows.size(), size_t{97}, size_t{8}, size_t{1}}) {
      SCOPED_TRACE(batch);
      std::shuffle(rows.begin(), rows.end(), rng);
      layer.reset();
      for (size_t at = 0; at < rows.size(); at += batch) {
        const size_t end = std::min(rows.size(), at + batch);
        layer.step(
            {rows.begin() + static_cast<int64_t>(at), rows.begin() + static_cast<int64_t>(end)});
      }
      expect_equal(whole, layer.bytes());
    }
  }
}

// Skipped rows' outputs, the holes between rows' tokens, and slots that no row writes.
TEST_F(Launches, NothingElseIsWritten) {
  for (const Problem& p : problems()) {
    SCOPED_TRACE(name_of(p));
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
}

// With and without the early fetch, behind a kernel that has nothing to do with the step.
TEST_F(Launches, GraphEqualsEager) {
  for (const Problem& p : problems()) {
    SCOPED_TRACE(name_of(p));
    DeviceLayer layer(p, kRows, 5);
    layer.reset();
    layer.step(layer.rows());
    const DeviceLayer::Bytes eager = layer.bytes();

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
      layer.plan().step(layer.args(rows, kRows), stream, {.early = early});
      cuda_check(cudaStreamEndCapture(stream, &graph), "capture");
      cuda_check(cudaGraphInstantiate(&executable, graph, 0), "graph");
      for (int replay = 0; replay < 3; ++replay) {
        layer.reset();
        cuda_check(cudaGraphLaunch(executable, stream), "graph");
        cuda_check(cudaStreamSynchronize(stream), "graph");
        expect_equal(eager, layer.bytes());
      }
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
      cudaStreamDestroy(stream);
    }
  }
}

// A row alone gives what it gives among 600.
TEST_F(Launches, ARowAlone) {
  for (const Problem& p : problems()) {
    SCOPED_TRACE(name_of(p));
    DeviceLayer layer(p, kRows, 6);
    layer.reset();
    layer.step(layer.rows());
    const DeviceLayer::Bytes whole = layer.bytes();
    for (int i = 0; i < kRows; i += 37) {
      const Row& row = layer.rows()[i];
      if (row.read_slot < 0) continue;
      layer.reset();
      layer.step({row});
      EXPECT_EQ(layer.out_of(whole, row), layer.out_of(layer.bytes(), row)) << "row " << i;
    }
  }
}

}  // namespace
}  // namespace replayssm::test
