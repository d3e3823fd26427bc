#include "bench/layers/time_layer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "bench/common/state_bytes.h"
#include "core/error.h"
#include "core/memory.h"
#include "ops/parallel.h"
#include "replay/convert.h"
#include "replay/plain.h"

namespace replayssm::bench {
namespace {

constexpr int kCycles = 5;

double now_us() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One layer's pools and inputs for a batch; bf16 activations, an fp16 ring (Mamba-2: bf16).
class LayerRun {
 public:
  LayerRun(const LayerCase& layer_case, ThreadPool& pool) : case_(layer_case), pool_(pool) {
    const LayerGeometry& g = case_.geometry;
    Problem& p = problem_;
    p.family = g.family;
    p.n_heads = g.n_heads;
    p.n_key_heads = g.n_key_heads;
    p.value_dim = g.value_dim;
    p.key_dim = g.key_dim;
    p.grid = {case_.interval, Grid::rows_for(case_.interval, case_.window)};
    p.max_window = case_.window;
    p.activation = DType::kBF16;
    p.ring = g.family == Family::kMamba2 ? DType::kBF16 : DType::kF16;
    p.checkpoint = case_.state;
    if (case_.way == StateMethod::kReplay) {
      const auto result = plan_cpu(p, best_isa());
      if (result.plan == nullptr) fail("bench: ", result.reason);
      replay_ = result.plan;
    } else {
      const auto result = plan_plain_cpu(p, best_isa());
      if (result.plan == nullptr) fail("bench: ", result.reason);
      plain_ = result.plan;
    }
    take_memory();
    for (int i = 0; i < case_.batch; ++i) {
      // Phases of the grid staggered, so that every step folds the same share of the batch.
      const int64_t n = 4 * case_.interval + i % case_.interval;
      sequences_.push_back({n, n / case_.interval * case_.interval, i * slots_each(), i});
    }
  }

  void step() {
    std::vector<Row>& rows = rows_;
    rows.clear();
    write_slots_.clear();
    for (int i = 0; i < case_.batch; ++i) {
      const SequenceState& s = sequences_[i];
      rows.push_back({s.n, s.c, s.n, case_.window, int64_t{i} * case_.window, s.checkpoint_slot,
                      s.checkpoint_slot, s.ring_slot});
      for (int t = 0; t < case_.window; ++t) write_slots_.push_back(snapshot_slot(i, t));
    }
    args_.rows = rows.data();
    args_.n_rows = case_.batch;
    if (replay_ != nullptr) {
      replay_->step(args_, parallel_of(pool_));
    } else {
      plain_->run({args_, write_slots_.data(), case_.window}, parallel_of(pool_));
    }
    for (int i = 0; i < case_.batch; ++i) {
      SequenceState& s = sequences_[i];
      if (replay_ != nullptr) {
        const Status status = commit_step(problem_.grid, rows[i], case_.accepted, s);
        REPLAYSSM_CHECK(status == Status::kOk, "a window of the benchmark does not commit");
      } else {
        s.checkpoint_slot = snapshot_slot(i, case_.accepted - 1);
        s.n += case_.accepted;
      }
    }
  }

  double must_move() const {
    return case_.batch * step_bytes(problem_, case_.way, case_.window, case_.accepted);
  }

 private:
  int slots_each() const { return case_.way == StateMethod::kSnapshots ? case_.window + 1 : 1; }
  int32_t snapshot_slot(int i, int t) const {
    if (case_.way != StateMethod::kSnapshots) return i;
    const int base = i * slots_each();
    return base + (sequences_[i].checkpoint_slot - base + 1 + t) % slots_each();
  }

  Buffer random(int64_t n, DType dtype) {
    Buffer buffer(static_cast<size_t>(n * dtype_bytes(dtype)));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n; ++i) {
      const float x = normal(rng_);
      if (dtype == DType::kF32) {
        buffer.as<float>()[i] = x;
      } else {
        buffer.as<uint16_t>()[i] = float_to_bf16(x);
      }
    }
    return buffer;
  }

  void take_memory() {
    const Problem& p = problem_;
    const int64_t tokens = int64_t{case_.batch} * case_.window;
    const int64_t key_row = p.n_key_heads * p.key_dim, value_row = p.n_heads * p.value_dim;
    const int64_t gate_row = p.n_heads * (p.family == Family::kKda ? p.key_dim : 1);
    const int64_t elements =
        replay_ != nullptr ? replay_->checkpoint_elements() : plain_->checkpoint_elements();
    const double slots = static_cast<double>(slots_each()) * case_.batch;
    check_memory(slots * static_cast<double>(elements * dtype_bytes(p.checkpoint)),
                 concat(case_.batch, " sequences' states"));
    query_ = random(tokens * key_row, DType::kBF16);
    key_ = random(tokens * key_row, DType::kBF16);
    value_ = random(tokens * value_row, DType::kBF16);
    gate_ = random(tokens * gate_row, DType::kF32);
    beta_ = random(tokens * p.n_heads, DType::kF32);
    parameters_ = random(gate_row + 2 * p.n_heads, DType::kF32);
    out_ = Buffer(static_cast<size_t>(tokens * value_row * 2));
    checkpoint_ = Buffer(
        static_cast<size_t>(elements * slots_each() * case_.batch * dtype_bytes(p.checkpoint)));
    args_.query = {query_.data(), key_row};
    args_.key = {key_.data(), key_row};
    args_.value = {value_.data(), value_row};
    args_.gate = {gate_.data(), gate_row};
    args_.beta = {beta_.data(), p.n_heads};
    args_.dt_bias = parameters_.as<float>();
    args_.a_log = args_.dt_bias + gate_row;
    args_.skip = args_.a_log + p.n_heads;
    args_.out = {out_.data(), value_row};
    args_.checkpoint = checkpoint_.data();
    args_.checkpoint_slot_stride = elements;
    if (replay_ == nullptr) {
      workspace_ = Buffer(plain_->workspace_bytes(pool_.size()));
      args_.workspace = workspace_.data();
      return;
    }
    const int64_t r = p.grid.ring_rows;
    scale_ = Buffer(static_cast<size_t>(replay_->scale_elements() * case_.batch * 4));
    ring_key_ = Buffer(static_cast<size_t>(case_.batch * r * key_row * dtype_bytes(p.ring)));
    ring_value_ = Buffer(static_cast<size_t>(case_.batch * r * value_row * dtype_bytes(p.ring)));
    ring_gate_ = Buffer(static_cast<size_t>(case_.batch * r * gate_row * 4));
    workspace_ = Buffer(replay_->workspace_bytes(pool_.size()));
    args_.scale = scale_.as<float>();
    args_.scale_slot_stride = replay_->scale_elements();
    args_.ring_key = {ring_key_.data(), r * key_row, key_row};
    args_.ring_value = {ring_value_.data(), r * value_row, value_row};
    args_.ring_gate = {ring_gate_.data(), r * gate_row, gate_row};
    args_.workspace = workspace_.data();
  }

  LayerCase case_;
  ThreadPool& pool_;
  Problem problem_;
  std::shared_ptr<const Plan> replay_;
  std::shared_ptr<const PlainPlan> plain_;
  std::mt19937_64 rng_{7};
  Buffer query_, key_, value_, gate_, beta_, parameters_, out_, checkpoint_, scale_, ring_key_,
      ring_value_, ring_gate_, workspace_;
  StepArgs args_;
  std::vector<SequenceState> sequences_;
  std::vector<Row> rows_;
  std::vector<int32_t> write_slots_;
};

}  // namespace

const std::vector<LayerGeometry>& layer_geometries() {
  static const std::vector<LayerGeometry> geometries = {
      {"Qwen3.5-4B GDN", Family::kGdn, 32, 16, 128, 128},
      {"Nemotron-3-Nano-4B Mamba-2", Family::kMamba2, 96, 8, 80, 128},
      {"Kimi-Linear KDA", Family::kKda, 32, 32, 128, 128},
  };
  return geometries;
}

LayerTiming time_layer(const LayerCase& layer_case, ThreadPool& pool) {
  LayerRun run(layer_case, pool);
  for (int i = 0; i < layer_case.interval; ++i) run.step();
  std::vector<double> cycles;
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    const double start = now_us();
    for (int i = 0; i < layer_case.interval; ++i) run.step();
    cycles.push_back((now_us() - start) / layer_case.interval);
  }
  return {median(cycles), run.must_move()};
}

double measure_read_bandwidth(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{512} << 20;
  constexpr int64_t kBlock = int64_t{1} << 20;
  const Buffer buffer(kBytes);
  std::vector<uint64_t> sums(static_cast<size_t>(pool.size()) * 8);
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = now_us();
    pool.parallel_for(kBytes / kBlock, [&](int64_t block, int worker) {
      const uint64_t* data = buffer.as<uint64_t>() + block * (kBlock / 8);
      uint64_t sum[8] = {};
      for (int64_t i = 0; i < kBlock / 8; i += 8) {
        for (int lane = 0; lane < 8; ++lane) sum[lane] += data[i + lane];
      }
      for (uint64_t lane : sum) sums[static_cast<size_t>(worker) * 8] += lane;
    });
    best = std::max(best, kBytes / (now_us() - start) * 1e6);
  }
  REPLAYSSM_CHECK(sums[0] == 0, "a zeroed buffer sums to zero");
  return best;
}

}  // namespace replayssm::bench
