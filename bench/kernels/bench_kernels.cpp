// Microseconds of one layer's step on the GPU: graph replay over pools several times the L2 cache,
// the rows' fold phases staggered, mean over a fold cycle.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "../../tests/cuda/device.h"
#include "replay/convert.h"
#include "replay/cuda/kernels_cuda.h"

namespace replayssm {
namespace {

using test::cuda_check;
using test::DeviceBuffer;

struct Shape {
  const char* name;
  Family family;
  int n_heads, n_key_heads, value_dim;
};
constexpr Shape kShapes[] = {
    {"Qwen3.5-4B GDN", Family::kGdn, 32, 16, 128},
    {"Nemotron-3-Nano-30B", Family::kMamba2, 64, 8, 64},
    {"Nemotron-3-Nano-4B", Family::kMamba2, 96, 8, 80},
};
constexpr int kCycle = 16;

template <typename Fill>
std::unique_ptr<DeviceBuffer> random_buffer(int64_t n, const Fill& fill) {
  std::vector<decltype(fill(0.0f))> host(static_cast<size_t>(n));
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  for (auto& x : host) x = fill(normal(rng));
  return std::make_unique<DeviceBuffer>(host);
}

double time_step(const Shape& shape, DType checkpoint, int batch, int window, int accepted) {
  Problem p;
  p.family = shape.family;
  p.n_heads = shape.n_heads;
  p.n_key_heads = shape.n_key_heads;
  p.value_dim = shape.value_dim;
  p.key_dim = 128;
  p.grid = {16, Grid::rows_for(16, window)};
  p.max_window = window;
  p.activation = DType::kBF16;
  p.ring = shape.family == Family::kMamba2 ? DType::kBF16 : DType::kF16;
  p.checkpoint = checkpoint;
  const auto planned = plan_cuda(p);
  if (planned.plan == nullptr) {
    std::printf("%s\n", planned.reason.c_str());
    return -1;
  }
  const CudaPlan& plan = *planned.plan;
  const int64_t keys = p.n_key_heads * p.key_dim, values = p.n_heads * p.value_dim;
  const int64_t r = p.grid.ring_rows, tokens = int64_t{batch} * window;
  const int64_t state_bytes = plan.checkpoint_elements() * dtype_bytes(checkpoint) * batch;
  const int pools = static_cast<int>(std::max<int64_t>(1, (int64_t{320} << 20) / state_bytes + 1));
  const auto to_bf16 = [](float x) { return float_to_bf16(x); };
  const auto same = [](float x) { return x; };
  auto q = random_buffer(tokens * keys, to_bf16), k = random_buffer(tokens * keys, to_bf16);
  auto v = random_buffer(tokens * values, to_bf16);
  auto gate = random_buffer(tokens * p.n_heads, same),
       beta = random_buffer(tokens * p.n_heads, same);
  auto weights = random_buffer(p.n_heads, same);
  DeviceBuffer out(tokens * values * 2), saturated(std::vector<int64_t>{0});
  std::vector<std::unique_ptr<DeviceBuffer>> keep;
  std::vector<StepArgs> args(static_cast<size_t>(pools));
  auto zeros = [&](int64_t bytes) {
    keep.push_back(std::make_unique<DeviceBuffer>(bytes));
    cuda_check(cudaMemset(keep.back()->data(), 0, static_cast<size_t>(keep.back()->bytes())),
               "set");
    return keep.back()->data();
  };
  for (StepArgs& a : args) {
    a.n_rows = batch;
    a.query = {q->data(), keys};
    a.key = {k->data(), keys};
    a.value = {v->data(), values};
    a.gate = {gate->data(), p.n_heads};
    a.beta = {beta->data(), p.n_heads};
    a.a_log = a.dt_bias = a.skip = static_cast<const float*>(weights->data());
    a.out = {out.data(), values};
    a.checkpoint = zeros(state_bytes);
    a.checkpoint_slot_stride = plan.checkpoint_elements();
    a.scale = static_cast<float*>(zeros(plan.scale_elements() * batch * 4));
    a.scale_slot_stride = plan.scale_elements();
    a.ring_key = {zeros(batch * r * keys * 2), r * keys, keys};
    a.ring_value = {zeros(batch * r * values * 2), r * values, values};
    a.ring_gate = {zeros(batch * r * p.n_heads * 4), r * p.n_heads, p.n_heads};
    a.n_saturated = static_cast<int64_t*>(saturated.data());
  }
  // The rows of each step of a cycle, made beforehand.
  std::vector<SequenceState> states;
  for (int i = 0; i < batch; ++i) {
    const int64_t n = 64 + i % 16;
    states.push_back({n, n / 16 * 16, i, i});
  }
  std::vector<std::unique_ptr<DeviceBuffer>> rows;
  for (int step = 0; step < kCycle; ++step) {
    std::vector<Row> host;
    for (int i = 0; i < batch; ++i) {
      const SequenceState& s = states[static_cast<size_t>(i)];
      host.push_back({s.n, s.c, s.n, window, int64_t{i} * window, i, i, i});
      commit_step(p.grid, host.back(), accepted, states[static_cast<size_t>(i)]);
    }
    rows.push_back(std::make_unique<DeviceBuffer>(host));
  }
  cudaStream_t stream;
  cuda_check(cudaStreamCreate(&stream), "stream");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  const int steps = kCycle * std::max(1, std::min(pools, 8));
  for (int step = 0; step < steps; ++step) {
    StepArgs a = args[static_cast<size_t>(step % pools)];
    a.rows = static_cast<const Row*>(rows[static_cast<size_t>(step % kCycle)]->data());
    plan.step(a, stream);
  }
  cuda_check(cudaStreamEndCapture(stream, &graph), "end capture");
  cuda_check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  cuda_check(cudaEventCreate(&begin), "event");
  cuda_check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 7; ++i) {
    cuda_check(cudaEventRecord(begin, stream), "record");
    cuda_check(cudaGraphLaunch(exec, stream), "graph");
    cuda_check(cudaEventRecord(end, stream), "record");
    cuda_check(cudaStreamSynchronize(stream), "run");
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    times.push_back(ms * 1e3f / static_cast<float>(steps));
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return times[times.size() / 2];
}

}  // namespace
}  // namespace replayssm

int main() {
  using namespace replayssm;
  std::printf("%-22s %5s %5s %8s %8s %8s  (us: T=1, T=4, T=8)\n", "layer", "dtype", "batch", "1",
              "4", "8");
  for (const auto& shape : kShapes) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kI8}) {
      for (int batch : {1, 32, 256}) {
        const double t1 = time_step(shape, dtype, batch, 1, 1);
        const double t4 = time_step(shape, dtype, batch, 4, 3);
        const double t8 = time_step(shape, dtype, batch, 8, 4);
        std::printf("%-22s %5s %5d %8.1f %8.1f %8.1f\n", shape.name, dtype_name(dtype), batch, t1,
                    t4, t8);
        std::fflush(stdout);
      }
    }
  }
  return 0;
}
