#include "bench/precision/study.h"

#include <cmath>
#include <memory>
#include <random>

#include "core/error.h"
#include "ops/parallel.h"
#include "replay/convert.h"
#include "replay/kernels.h"
#include "replay/plain.h"
#include "replay/ref/reference.h"

namespace replayssm::study {
namespace {

// Zeroed memory at a 64-byte boundary.
class Buffer {
 public:
  explicit Buffer(int64_t bytes) : memory_(std::make_unique<char[]>(bytes + 64)) {}
  char* data() const {
    return memory_.get() + (64 - reinterpret_cast<uintptr_t>(memory_.get()) % 64) % 64;
  }

 private:
  std::unique_ptr<char[]> memory_;
};

int gates_of(const Problem& p) {
  return p.family == Family::kKda ? p.n_heads * p.key_dim : p.n_heads;
}

StepArgs args_of(const LayerInputs& in, float* y) {
  const Problem& p = in.problem;
  StepArgs args;
  args.query = {in.query.data(), int64_t{p.n_key_heads} * p.key_dim};
  args.key = {in.key.data(), int64_t{p.n_key_heads} * p.key_dim};
  args.value = {in.value.data(), int64_t{p.n_heads} * p.value_dim};
  args.gate = {in.gate.data(), gates_of(p)};
  args.beta = {in.beta.data(), p.n_heads};
  args.a_log = in.a_log.data();
  args.dt_bias = in.dt_bias.data();
  args.skip = in.skip.data();
  args.out = {y, int64_t{p.n_heads} * p.value_dim};
  return args;
}

template <typename PlanType>
const PlanType& checked(const PlanResult<PlanType>& result) {
  if (result.plan == nullptr) throw Error(result.reason);
  return *result.plan;
}

void run_plain(const Problem& p, StepArgs args, int32_t n_tokens, ThreadPool& pool) {
  const auto result = plan_plain_cpu(p, best_isa());
  const PlainPlan& plan = checked(result);
  const Buffer state(plan.checkpoint_elements() * dtype_bytes(p.checkpoint));
  const Buffer workspace(static_cast<int64_t>(plan.workspace_bytes(pool.size())));
  const Row row{0, 0, 0, n_tokens, 0, 0, 0, 0};
  args.rows = &row;
  args.n_rows = 1;
  args.checkpoint = state.data();
  args.checkpoint_slot_stride = plan.checkpoint_elements();
  args.workspace = workspace.data();
  const std::vector<int32_t> write_slots(n_tokens, -1);
  plan.run({args, write_slots.data(), n_tokens}, parallel_of(pool));
}

// One sweep: on the grid every way to cut the sequence gives the same bits.
int64_t run_replay(const Problem& p, StepArgs args, int32_t n_tokens, ThreadPool& pool) {
  const auto result = plan_cpu(p, best_isa());
  const Plan& plan = checked(result);
  const Buffer state(plan.checkpoint_elements() * dtype_bytes(p.checkpoint));
  const Buffer scale(plan.scale_elements() * 4);
  const int64_t rows = p.grid.ring_rows;
  const int64_t key_row = int64_t{p.n_key_heads} * p.key_dim;
  const int64_t value_row = int64_t{p.n_heads} * p.value_dim;
  const Buffer ring_key(rows * key_row * dtype_bytes(p.ring));
  const Buffer ring_value(rows * value_row * dtype_bytes(p.ring));
  const Buffer ring_gate(rows * gates_of(p) * 4);
  const Buffer workspace(static_cast<int64_t>(plan.workspace_bytes(pool.size())));
  const Row row{0, 0, 0, n_tokens, 0, 0, 0, 0};
  int64_t n_saturated = 0;
  args.rows = &row;
  args.n_rows = 1;
  args.checkpoint = state.data();
  args.checkpoint_slot_stride = plan.checkpoint_elements();
  args.scale = reinterpret_cast<float*>(scale.data());
  args.scale_slot_stride = plan.scale_elements();
  args.ring_key = {ring_key.data(), rows * key_row, key_row};
  args.ring_value = {ring_value.data(), rows * value_row, value_row};
  args.ring_gate = {ring_gate.data(), rows * gates_of(p), gates_of(p)};
  args.n_saturated = &n_saturated;
  args.workspace = workspace.data();
  plan.sweep(args, parallel_of(pool));
  return n_saturated;
}

}  // namespace

std::string Scheme::name() const {
  const std::string state = dtype_name(checkpoint);
  if (plain) return "plain recurrence, " + state + " state";
  return std::string("replay, ring ") + dtype_name(ring) + ", checkpoint " + state +
         ", B=" + std::to_string(interval);
}

double Scheme::bytes_per_element() const {
  const double bytes = static_cast<double>(dtype_bytes(checkpoint));
  return plain ? 2 * bytes : bytes * (1 + 1.0 / interval);
}

std::vector<Scheme> schemes() {
  constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16, kI8 = DType::kI8;
  return {{true, kF32, kF32, 0},   {true, kF32, kF16, 0},    {true, kF32, kBF16, 0},
          {false, kF32, kF32, 16}, {false, kBF16, kF32, 16}, {false, kF16, kF32, 16},
          {false, kF16, kF16, 16}, {false, kF16, kBF16, 16}, {false, kBF16, kBF16, 16},
          {false, kF16, kI8, 16},  {false, kF16, kI8, 32},   {false, kF16, kI8, 64}};
}

std::vector<double> exact_outputs(const LayerInputs& in, int64_t n_measured) {
  const Problem& p = in.problem;
  ref::Recurrence recurrence(p, {in.a_log.data(), in.dt_bias.data(), in.skip.data()});
  std::vector<double> y;
  for (int64_t t = 0; t < in.n_tokens; ++t) {
    const std::vector<double> at =
        recurrence.append({in.query.data() + t * p.n_key_heads * p.key_dim,
                           in.key.data() + t * p.n_key_heads * p.key_dim,
                           in.value.data() + t * p.n_heads * p.value_dim,
                           in.gate.data() + t * gates_of(p), in.beta.data() + t * p.n_heads});
    if (t >= in.n_tokens - n_measured) y.insert(y.end(), at.begin(), at.end());
  }
  return y;
}

Result measure(const LayerInputs& in, const Scheme& scheme, const std::vector<double>& exact,
               ThreadPool& pool) {
  Problem p = in.problem;
  p.activation = DType::kF32;
  p.checkpoint = scheme.checkpoint;
  std::vector<float> y(in.n_tokens * p.n_heads * p.value_dim);
  const auto n_tokens = static_cast<int32_t>(in.n_tokens);
  Result result;
  if (scheme.plain) {
    run_plain(p, args_of(in, y.data()), n_tokens, pool);
  } else {
    p.ring = scheme.ring;
    p.grid = {scheme.interval, Grid::rows_for(scheme.interval, 1)};
    p.max_window = 1;
    result.n_saturated = run_replay(p, args_of(in, y.data()), n_tokens, pool);
  }
  double difference = 0, energy = 0;
  const size_t first = y.size() - exact.size();
  for (size_t i = 0; i < exact.size(); ++i) {
    difference += (y[first + i] - exact[i]) * (y[first + i] - exact[i]);
    energy += exact[i] * exact[i];
  }
  result.error = std::sqrt(difference / energy);
  return result;
}

LayerInputs synthetic(Family family, Decay decay, int64_t n_tokens, uint64_t seed) {
  const bool mamba = family == Family::kMamba2;
  const int strength = static_cast<int>(decay);
  LayerInputs in;
  in.n_tokens = n_tokens;
  Problem& p = in.problem;
  p.family = family;
  p.value_dim = 64;
  p.key_dim = mamba ? 128 : 64;
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  const auto gaussian = [&](int64_t size) {
    std::vector<float> x(size);
    for (float& v : x) v = bf16_to_float(float_to_bf16(static_cast<float>(normal(rng))));
    return x;
  };
  in.query = gaussian(n_tokens * p.key_dim);
  in.key = gaussian(n_tokens * p.key_dim);
  in.value = gaussian(n_tokens * p.value_dim);
  // softplus(x) = y for x = log(e^y - 1)
  const auto inverse_softplus = [](double y) {
    return static_cast<float>(y > 20 ? y : std::log(std::expm1(y)));
  };
  in.gate.resize(n_tokens * gates_of(p));
  in.dt_bias.assign(gates_of(p), 0.0f);
  if (mamba) {
    const double mean[] = {0.1, 0.01, 0.001};
    in.name = "m = " + std::string(strength == 0 ? "0.1" : strength == 1 ? "0.01" : "0.001");
    for (float& x : in.gate) x = static_cast<float>(normal(rng));
    in.dt_bias[0] = inverse_softplus(mean[strength]);
    in.a_log = {std::log(1.5f)};
    in.skip = {0.0f};
    return in;
  }
  const double rate[] = {1.0, 0.01, 0.0};
  in.name = strength == 0 ? "decay strong" : strength == 1 ? "decay weak" : "no decay";
  for (float& x : in.gate) x = inverse_softplus(std::exp(normal(rng) - 1.0));
  for (int64_t i = 0; i < n_tokens; ++i) in.beta.push_back(static_cast<float>(normal(rng)));
  in.a_log = {static_cast<float>(std::log(rate[strength]))};
  return in;
}

}  // namespace replayssm::study
