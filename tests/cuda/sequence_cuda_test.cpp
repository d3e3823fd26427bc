// Commits on the device against commit_row on the host; the conv kernel at batch; graphs of both.
#include "replay/cuda/sequence_cuda.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "device.h"
#include "replay/convert.h"
#include "replay/cuda/conv_cuda.h"

namespace replayssm::test {
namespace {

constexpr Grid kGrid = {16, 47};

struct Batch {
  std::vector<Row> rows;
  std::vector<int32_t> advance;
  std::vector<SequenceState> states;
};

// In range, one past either end, far out, stale, skipped, and rows that no call can have had.
Batch random_batch(int n, std::mt19937& rng) {
  Batch b;
  for (int i = 0; i < n; ++i) {
    Row row;
    row.n = rng() % 100;
    row.c = kGrid.checkpoint_of(row.n) - (rng() % 2 == 0 && row.n >= 16 ? 16 : 0);
    row.start = row.n + rng() % 3;
    row.n_tokens = static_cast<int32_t>(rng() % 9);
    row.read_slot = rng() % 7 == 0 ? -1 : i;
    row.write_slot = n + i;
    row.ring_slot = i;
    SequenceState state = {row.n, row.c, i, i};
    const auto end = static_cast<int32_t>(row.start + row.n_tokens - row.n);
    int32_t advance = static_cast<int32_t>(rng() % (end + 1));
    switch (rng() % 10) {
      case 0:
        advance = -1;
        break;
      case 1:
        advance = end + 1;
        break;
      case 2:
        advance = rng() % 2 == 0 ? INT32_MAX : INT32_MIN;
        break;
      case 3:
        ++state.n;
        break;
      case 4:
        state.c += 16;
        break;
      case 5:
        row.start = row.n - 1;
        break;
      default:
        break;
    }
    b.rows.push_back(row);
    b.advance.push_back(advance);
    b.states.push_back(state);
  }
  return b;
}

void expect_states(const std::vector<SequenceState>& a, const std::vector<SequenceState>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(a[i].n == b[i].n && a[i].c == b[i].c &&
                a[i].checkpoint_slot == b[i].checkpoint_slot && a[i].ring_slot == b[i].ring_slot)
        << "sequence " << i;
  }
}

TEST(CommitCuda, AsOnTheHost) {
  std::mt19937 rng(1);
  for (const bool is_sweep : {false, true}) {
    for (const int n : {1, 127, 128, 129, 3000}) {
      Batch batch = random_batch(n, rng);
      int64_t refused = 0;
      CommitArgs host = {batch.rows.data(), n, is_sweep, batch.advance.data(), nullptr, &refused};
      std::vector<SequenceState> expected = batch.states;
      host.states = expected.data();
      for (int i = 0; i < n; ++i) refused += commit_row(kGrid, host, i) ? 0 : 1;
      const DeviceBuffer rows(batch.rows), advance(batch.advance), states(batch.states);
      const DeviceBuffer count(std::vector<int64_t>{1000});
      commit_cuda(kGrid,
                  {static_cast<const Row*>(rows.data()), n, is_sweep,
                   static_cast<const int32_t*>(advance.data()),
                   static_cast<SequenceState*>(states.data()), static_cast<int64_t*>(count.data())},
                  nullptr);
      cuda_check(cudaDeviceSynchronize(), "commit");
      expect_states(states.download<SequenceState>(n), expected);
      EXPECT_EQ(count.download<int64_t>(1)[0], 1000 + refused);
      EXPECT_GE(refused, n / 10);
    }
  }
}

// A conv over many rows of all lengths, prompts that come round the ring among them, followed by
// its commit: one graph, launched again and again, gives what eager calls give.
TEST(ConvCuda, AGraphOfConvAndCommit) {
  constexpr int kRows = 520, kChannels = 64;
  const ConvProblem p = {kChannels, 4, 11, DType::kBF16};
  const auto plan = plan_cuda(p).plan;
  ASSERT_NE(plan, nullptr);
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  std::vector<Row> rows;
  std::vector<SequenceState> states;
  std::vector<int32_t> advance;
  int64_t n_tokens = 0;
  for (int i = 0; i < kRows; ++i) {
    Row row;
    row.n = row.start = rng() % 40;
    row.c = kGrid.checkpoint_of(row.n);
    row.n_tokens = i % 50 == 0 ? 300 : static_cast<int32_t>(rng() % 9);
    row.token = n_tokens;
    n_tokens += row.n_tokens;
    row.read_slot = i % 17 == 16 ? -1 : 0;
    row.ring_slot = kRows - 1 - i;
    rows.push_back(row);
    states.push_back({row.n, row.c, 0, row.ring_slot});
    advance.push_back(row.n_tokens);
  }
  const auto bf16 = [&](int64_t n) {
    std::vector<uint16_t> out(static_cast<size_t>(n));
    for (uint16_t& x : out) x = float_to_bf16(normal(rng));
    return out;
  };
  std::vector<float> weight(4 * kChannels);
  for (float& x : weight) x = normal(rng);
  const std::vector<uint16_t> first_ring = bf16(int64_t{kRows} * p.ring_rows * kChannels);
  const DeviceBuffer device_rows(rows), device_advance(advance), in(bf16(n_tokens * kChannels)),
      device_weight(weight);
  DeviceBuffer out(n_tokens * kChannels * 2), ring(first_ring), device_states(states),
      refused(std::vector<int64_t>{0});
  ConvArgs args;
  args.rows = static_cast<const Row*>(device_rows.data());
  args.n_rows = kRows;
  args.in = {in.data(), kChannels};
  args.out = {out.data(), kChannels};
  args.weight = static_cast<const float*>(device_weight.data());
  args.ring = {ring.data(), p.ring_rows * kChannels, kChannels};
  const CommitArgs commit = {args.rows,
                             kRows,
                             /*is_sweep=*/false,
                             static_cast<const int32_t*>(device_advance.data()),
                             static_cast<SequenceState*>(device_states.data()),
                             static_cast<int64_t*>(refused.data())};
  const auto reset = [&] {
    ring.upload(first_ring);
    device_states.upload(states);
    cuda_check(cudaMemset(out.data(), 0xff, out.bytes()), "reset");
  };
  const auto result = [&] {
    std::vector<uint8_t> all = out.download<uint8_t>(out.bytes());
    for (const DeviceBuffer* x : {&ring, &device_states, &refused}) {
      const auto more = x->download<uint8_t>(x->bytes());
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  };
  reset();
  plan->run(args, n_tokens, nullptr);
  commit_cuda(kGrid, commit, nullptr);
  cuda_check(cudaDeviceSynchronize(), "conv");
  const std::vector<uint8_t> eager = result();

  // The launch's shape changes no bit.
  for (const int64_t hint : {int64_t{1}, int64_t{kRows} * 300}) {
    reset();
    plan->run(args, hint, nullptr);
    commit_cuda(kGrid, commit, nullptr);
    cuda_check(cudaDeviceSynchronize(), "conv");
    EXPECT_TRUE(eager == result()) << "hint " << hint;
  }

  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cuda_check(cudaStreamCreate(&stream), "stream");
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  plan->run(args, n_tokens, stream);
  commit_cuda(kGrid, commit, stream);
  cuda_check(cudaStreamEndCapture(stream, &graph), "capture");
  cuda_check(cudaGraphInstantiate(&executable, graph, 0), "graph");
  for (int replay = 0; replay < 20; ++replay) {
    reset();
    cuda_check(cudaGraphLaunch(executable, stream), "graph");
    cuda_check(cudaStreamSynchronize(stream), "graph");
    EXPECT_TRUE(eager == result()) << "replay " << replay;
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace replayssm::test
