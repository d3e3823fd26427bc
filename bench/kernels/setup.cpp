#include "setup.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "bench/baselines/state_kernels.h"
#include "replay/convert.h"
#include "replay/cuda/kernels_cuda.h"
#include "replay/cuda/sequence_cuda.h"

namespace replayssm::bench {
namespace {

constexpr int64_t kPoolBytes = 320'000'000;
constexpr int kEarlyBatches = 64;  // up to here a step is launched early: one wave or little more
constexpr int kOnePoolBatch = 1024;
constexpr double kGraphUs = 2000;  // long enough that the ends of a graph do not count
constexpr int64_t kPattern = 1 << 18;

std::vector<float> normals(int64_t n, float scale, float mean = 0) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(mean, scale);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(rng);
  return x;
}

std::vector<uint16_t> rounded(const std::vector<float>& x, DType dtype) {
  std::vector<uint16_t> bits;
  for (const float v : x) {
    bits.push_back(dtype == DType::kF16 ? float_to_half(v) : float_to_bf16(v));
  }
  return bits;
}

// What both kinds of step read: the layer's parameters and one batch of windows.
struct Common {
  Common(const Cell& cell, Arena& arena)
      : p(cell.problem()),
        keys(int64_t{p.n_key_heads} * p.key_dim),
        values(int64_t{p.n_heads} * p.value_dim),
        gates(int64_t{p.n_heads} * (p.family == Family::kKda ? p.key_dim : 1)),
        state_elements(values * p.key_dim) {
    const int64_t tokens = int64_t{cell.batch} * cell.window;
    static const std::vector<uint16_t> unit = rounded(normals(kPattern, 1.0f), DType::kBF16);
    static const std::vector<float> small = normals(kPattern, 0.5f);
    inputs.query = {arena.take(tokens * keys, unit), keys};
    inputs.key = {arena.take(tokens * keys, unit), keys};
    inputs.value = {arena.take(tokens * values, unit), values};
    inputs.gate = {arena.take(tokens * gates, small), gates};
    inputs.beta = {arena.take(tokens * p.n_heads, small), p.n_heads};
    out = {arena.take(tokens * values * 2), values};
    a_log = arena.take(p.n_heads, small);
    dt_bias = arena.take(gates, normals(gates, 0.5f, -3.0f));
    skip = arena.take(p.n_heads, small);
    const int64_t batch_bytes = cell.batch * state_elements * dtype_bytes(cell.dtype);
    if (cell.batch < kOnePoolBatch) {
      n_pools = static_cast<int>((kPoolBytes + batch_bytes - 1) / batch_bytes);
    }
    const double cycle_us = cell.interval * floor_us(must_move_bytes(cell));
    const int cycles = std::max(static_cast<int>(std::ceil(kGraphUs / cycle_us)),
                                (n_pools + cell.interval - 1) / cell.interval);
    n_steps = cycles * cell.interval;
  }

  Problem p;
  int64_t keys, values, gates, state_elements;
  cuda::BaselineInputs inputs;
  MutableTokens out;
  const float *a_log, *dt_bias, *skip;
  int n_pools = 1, n_steps = 0;
};

// Consecutive steps work on different pools, so that one may fetch while the other ends.
bool is_early(const Cell& cell, int n_pools) { return n_pools > 1 && cell.batch <= kEarlyBatches; }

// One phase's rows; see setup.h.
std::vector<Row> rows_of(const Cell& cell, const Grid& grid, int phase) {
  const int64_t interval = cell.interval;
  const int accepted = accepted_of(cell.window);
  std::vector<Row> rows;
  for (int i = 0; i < cell.batch; ++i) {
    if (cell.sweep) {
      rows.push_back({0, 0, 0, cell.window, int64_t{i} * cell.window, i, i, i});
      continue;
    }
    const int64_t spread = cell.batch < interval ? i * interval / cell.batch : i;
    const int64_t n = 4 * interval + (spread + phase) % interval;
    SequenceState state{n - accepted, grid.checkpoint_of(n - accepted), i, i};
    const auto row = [&] {
      return Row{state.n, state.c, state.n, cell.window, int64_t{i} * cell.window, i, i, i};
    };
    REPLAYSSM_CHECK(commit_step(grid, row(), accepted, state) == Status::kOk, i);
    rows.push_back(row());
  }
  return rows;
}

Prepared prepare_replay(const Cell& cell, Arena& arena) {
  const auto planned = plan_cuda(cell.problem());
  if (planned.plan == nullptr) return {0, nullptr, planned.reason};
  const std::shared_ptr<const CudaPlan> plan = planned.plan;
  const Common c(cell, arena);
  const int64_t slots = int64_t{c.n_pools} * cell.batch, rows = c.p.grid.ring_rows;

  // One state in the plan's private layout, the same in all slots.
  std::vector<uint8_t> slot(
      static_cast<size_t>(plan->checkpoint_elements() * dtype_bytes(cell.dtype)));
  std::vector<float> scale(static_cast<size_t>(plan->scale_elements()));
  const int64_t slot_bytes = static_cast<int64_t>(slot.size());
  {
    const float* canonical = arena.take(c.state_elements, normals(c.state_elements, 0.3f));
    uint8_t* device_slot = arena.take(slot_bytes, slot);
    float* device_scale = arena.take(c.state_elements / c.p.key_dim, std::vector<float>{0});
    import_checkpoint_cuda(c.p, canonical, device_slot, device_scale, nullptr);
    check_cuda(cudaMemcpy(slot.data(), device_slot, slot.size(), cudaMemcpyDeviceToHost), "slot");
    check_cuda(cudaMemcpy(scale.data(), device_scale, scale.size() * sizeof(float),
                          cudaMemcpyDeviceToHost),
               "scale");
  }

  StepArgs args;
  args.n_rows = cell.batch;
  args.query = c.inputs.query;
  args.key = c.inputs.key;
  args.value = c.inputs.value;
  args.gate = c.inputs.gate;
  args.beta = c.inputs.beta;
  args.a_log = c.a_log;
  args.dt_bias = c.dt_bias;
  args.skip = c.skip;
  args.out = c.out;
  args.checkpoint = arena.take(slots * slot_bytes, slot);
  args.checkpoint_slot_stride = plan->checkpoint_elements();
  if (!scale.empty()) {
    args.scale = arena.take(slots * plan->scale_elements(), scale);
    args.scale_slot_stride = plan->scale_elements();
  }
  const auto ring_key = rounded(
      normals(kPattern, c.p.family == Family::kMamba2 ? 1.0f : 1.0f / std::sqrt(c.p.key_dim)),
      c.p.ring);
  const auto ring_value = rounded(normals(kPattern, 0.5f), c.p.ring);
  auto ring_gate = normals(kPattern, 0.05f);  // dt, else log alpha
  for (float& x : ring_gate) x = c.p.family == Family::kMamba2 ? std::fabs(x) : -std::fabs(x);
  args.ring_key = {arena.take(slots * rows * c.keys, ring_key), rows * c.keys, c.keys};
  args.ring_value = {arena.take(slots * rows * c.values, ring_value), rows * c.values, c.values};
  args.ring_gate = {arena.take(slots * rows * c.gates, ring_gate), rows * c.gates, c.gates};
  args.n_saturated = arena.take(1, std::vector<int64_t>{0});

  std::vector<Row> phases;
  for (int phase = 0; phase < cell.interval; ++phase) {
    const std::vector<Row> all = rows_of(cell, c.p.grid, phase);
    phases.insert(phases.end(), all.begin(), all.end());
  }
  const Row* device_rows = arena.take(static_cast<int64_t>(phases.size()), phases);

  const auto launch = [=](int step, cudaStream_t stream) {
    StepArgs a = args;
    const int64_t first = step % c.n_pools * int64_t{cell.batch};  // the pool's first slot
    a.rows = device_rows + int64_t{step % cell.interval} * cell.batch;
    a.checkpoint = static_cast<uint8_t*>(a.checkpoint) + first * slot_bytes;
    if (a.scale != nullptr) a.scale += first * a.scale_slot_stride;
    a.ring_key.data = static_cast<uint16_t*>(a.ring_key.data) + first * a.ring_key.slot_stride;
    a.ring_value.data =
        static_cast<uint16_t*>(a.ring_value.data) + first * a.ring_value.slot_stride;
    a.ring_gate.data = static_cast<float*>(a.ring_gate.data) + first * a.ring_gate.slot_stride;
    if (cell.sweep) {
      plan->sweep(a, stream);
    } else {
      plan->step(a, stream, {.early = is_early(cell, c.n_pools)});
    }
  };
  return {c.n_steps, launch, ""};
}

// The first `n` slots of a sequence hold states; `read` is the one that the window before left.
Prepared prepare_baseline(const Cell& cell, Arena& arena) {
  const Problem p = cell.problem();
  const std::string reason = cuda::baseline_reason(p);
  if (!reason.empty()) return {0, nullptr, reason};
  const Common c(cell, arena);
  const int window = cell.window, accepted = accepted_of(window);
  const int slots_each = cell.way == StateMethod::kSnapshots ? window : 1;
  const int read = cell.way == StateMethod::kSnapshots ? accepted - 1 : 0;

  cuda::BaselineArgs args;
  args.n_rows = cell.batch;
  args.inputs = args.kept = c.inputs;
  args.a_log = c.a_log;
  args.dt_bias = c.dt_bias;
  args.skip = c.skip;
  args.out = c.out;
  args.state_slot_stride = c.state_elements;
  const int64_t elements = int64_t{c.n_pools} * cell.batch * slots_each * c.state_elements;
  const std::vector<float> state = normals(kPattern, 0.3f);
  if (cell.dtype == DType::kF32) {
    args.state = arena.take(elements, state);
  } else {
    args.state = arena.take(elements, rounded(state, cell.dtype));
  }

  // Two passes at most: activation replay verifies, then rebuilds.
  std::vector<cuda::BaselineRow> rows, second;
  std::vector<int32_t> snapshots;
  for (int i = 0; i < cell.batch; ++i) {
    const int64_t token = int64_t{i} * window;
    const int32_t slot = i * slots_each + read;
    const bool joint = cell.way == StateMethod::kJointAdvance;
    rows.push_back({slot, joint ? accepted : 0, joint ? slot : -1, window, token, token});
    second.push_back({slot, accepted, slot, 0, token, token});
    for (int t = 0; t < window; ++t) snapshots.push_back(i * slots_each + t);
  }
  args.rows = arena.take(cell.batch, rows);
  const cuda::BaselineRow* device_second = nullptr;
  if (cell.way == StateMethod::kActivationReplay) device_second = arena.take(cell.batch, second);
  if (cell.way == StateMethod::kPlain || cell.way == StateMethod::kSnapshots) {
    args.snapshot_slots = arena.take(static_cast<int64_t>(snapshots.size()), snapshots);
    args.snapshot_stride = window;
  }

  const int64_t pool_bytes =
      int64_t{cell.batch} * slots_each * c.state_elements * dtype_bytes(cell.dtype);
  const auto launch = [=](int step, cudaStream_t stream) {
    cuda::BaselineArgs a = args;
    a.state = static_cast<uint8_t*>(a.state) + step % c.n_pools * pool_bytes;
    const bool early = is_early(cell, c.n_pools);
    cuda::baseline_step(p, a, stream, early);
    if (device_second != nullptr) {
      a.rows = device_second;
      cuda::baseline_step(p, a, stream, early);  // the first pass writes no state
    }
  };
  return {c.n_steps, launch, ""};
}

}  // namespace

Prepared prepare(const Cell& cell, Arena& arena) {
  arena.reset();
  const bool ours = cell.way == StateMethod::kReplay;
  return ours ? prepare_replay(cell, arena) : prepare_baseline(cell, arena);
}

}  // namespace replayssm::bench
