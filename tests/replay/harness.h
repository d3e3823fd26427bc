// A layer with its buffers, for the tests of src/replay: random inputs, pools with gaps and NaN in
// everything that a kernel must not read, guard bands round what it must not write.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/thread_pool.h"
#include "replay/convert.h"
#include "replay/kernels.h"
#include "replay/ref/reference.h"

namespace replayssm::test {

inline ParallelFor parallel_of(ThreadPool& pool) {
  return {[](void* ctx, int64_t count, ParallelFor::Function function, const void* arg) {
            static_cast<ThreadPool*>(ctx)->run(count, function, arg);
          },
          &pool, pool.size()};
}

inline float read_typed(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[i];
    case DType::kF16:
      return half_to_float(static_cast<const uint16_t*>(data)[i]);
    case DType::kBF16:
      return bf16_to_float(static_cast<const uint16_t*>(data)[i]);
    case DType::kI8:
      return static_cast<const int8_t*>(data)[i];
  }
  return 0;
}

inline void write_typed(DType dtype, void* data, int64_t i, float x) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[i] = x;
      break;
    case DType::kF16:
      static_cast<uint16_t*>(data)[i] = float_to_half(x);
      break;
    case DType::kBF16:
      static_cast<uint16_t*>(data)[i] = float_to_bf16(x);
      break;
    case DType::kI8:
      static_cast<int8_t*>(data)[i] = static_cast<int8_t>(x);
      break;
  }
}

// A byte buffer filled with 0xff: NaN in every float type, -1 in int8.
struct Poisoned {
  explicit Poisoned(int64_t bytes) : bytes(static_cast<size_t>(bytes), 0xff) {}
  void* data() { return bytes.data(); }
  std::vector<uint8_t> bytes;
};

// How strongly the state decays: the mean of -log alpha is about e^gate_mean.
struct InputLaw {
  double gate_mean = -1.0;
  uint64_t seed = 1;
};

// Inputs of n tokens for one layer, fp32 but rounded to the activation dtype where that applies.
struct Inputs {
  Inputs(const Problem& p, int64_t n, const InputLaw& law) {
    std::mt19937_64 rng(law.seed);
    std::normal_distribution<float> normal;
    auto fill = [&](std::vector<float>& x, int64_t size, bool round) {
      x.resize(static_cast<size_t>(size));
      for (float& v : x) {
        v = normal(rng);
        if (round && p.activation == DType::kBF16) v = bf16_to_float(float_to_bf16(v));
      }
    };
    const int gates = p.family == Family::kKda ? p.n_heads * p.key_dim : p.n_heads;
    fill(query, n * p.n_key_heads * p.key_dim, true);
    fill(key, n * p.n_key_heads * p.key_dim, true);
    fill(value, n * p.n_heads * p.value_dim, true);
    fill(gate, n * gates, false);
    fill(beta, n * p.n_heads, false);
    fill(a_log, p.n_heads, false);
    fill(dt_bias, gates, false);
    fill(skip, p.n_heads, false);
    for (float& x : a_log) x = 0.3f * x;
    for (float& x : dt_bias) x = static_cast<float>(law.gate_mean) + 0.5f * x;
    n_gates = gates;
  }
  ref::Parameters parameters() const { return {a_log.data(), dt_bias.data(), skip.data()}; }
  ref::TokenInputs token(const Problem& p, int64_t t) const {
    return {query.data() + t * p.n_key_heads * p.key_dim,
            key.data() + t * p.n_key_heads * p.key_dim, value.data() + t * p.n_heads * p.value_dim,
            gate.data() + t * n_gates, beta.data() + t * p.n_heads};
  }
  std::vector<float> query, key, value, gate, beta, a_log, dt_bias, skip;
  int n_gates = 0;
};

// The pools of one layer for n_slots sequences, with gaps between slots and rows.
class Layer {
 public:
  Layer(const Problem& problem, Isa isa, int n_slots, ThreadPool& pool)
      : problem_(problem),
        pool_(pool),
        plan_(plan_cpu(problem, isa).plan),
        key_row_(problem.n_key_heads * problem.key_dim + 3),
        value_row_(problem.n_heads * problem.value_dim + 5),
        gate_row_(gates() + 1),
        checkpoint_stride_(plan_->checkpoint_elements() + 32),
        scale_stride_(plan_->scale_elements() + 8),
        checkpoint(checkpoint_stride_ * n_slots * dtype_bytes(problem.checkpoint)),
        scale(scale_stride_ * n_slots * 4),
        ring_key(ring_slot(key_row_) * n_slots * dtype_bytes(problem.ring)),
        ring_value(ring_slot(value_row_) * n_slots * dtype_bytes(problem.ring)),
        ring_gate(ring_slot(gate_row_) * n_slots * 4),
        workspace_(plan_->workspace_bytes(pool.size()) + 64) {}

  const Plan& plan() const { return *plan_; }
  int64_t saturated() const { return saturated_; }
  int64_t checkpoint_stride() const { return checkpoint_stride_; }

  // Runs rows over packed tokens taken from `inputs` at the absolute positions of each row's window
  // (plus position_offset[row]); returns y of every packed token, in order, fp32.
  std::vector<float> run(const Inputs& inputs, std::vector<Row> rows, bool sweep,
                         const std::vector<const Inputs*>& inputs_of_row = {}) {
    const Problem& p = problem_;
    int64_t n_tokens = 0;
    for (Row& row : rows) {
      row.token = n_tokens;
      n_tokens += row.n_tokens;
    }
    const int64_t qs = p.n_key_heads * p.key_dim + 7, vs = p.n_heads * p.value_dim + 9;
    const int64_t gs = gates() + 2, bs = p.n_heads + 1;
    const int64_t act = dtype_bytes(p.activation);
    Poisoned q(n_tokens * qs * act + 64), k(n_tokens * qs * act + 64), v(n_tokens * vs * act + 64);
    Poisoned gate(n_tokens * gs * 4 + 64), beta(n_tokens * bs * 4 + 64);
    Poisoned out(n_tokens * vs * act + 64);
    for (size_t r = 0; r < rows.size(); ++r) {
      const Inputs& in = inputs_of_row.empty() ? inputs : *inputs_of_row[r];
      for (int i = 0; i < rows[r].n_tokens; ++i) {
        const ref::TokenInputs token = in.token(p, rows[r].start + i);
        const int64_t at = rows[r].token + i;
        for (int e = 0; e < p.n_key_heads * p.key_dim; ++e) {
          write_typed(p.activation, q.data(), at * qs + e, token.query[e]);
          write_typed(p.activation, k.data(), at * qs + e, token.key[e]);
        }
        for (int e = 0; e < p.n_heads * p.value_dim; ++e) {
          write_typed(p.activation, v.data(), at * vs + e, token.value[e]);
        }
        for (int e = 0; e < gates(); ++e) {
          write_typed(DType::kF32, gate.data(), at * gs + e, token.gate[e]);
        }
        for (int e = 0; e < p.n_heads; ++e) {
          write_typed(DType::kF32, beta.data(), at * bs + e, token.beta[e]);
        }
      }
    }
    StepArgs args;
    args.rows = rows.data();
    args.n_rows = static_cast<int32_t>(rows.size());
    args.query = {q.data(), qs};
    args.key = {k.data(), qs};
    args.value = {v.data(), vs};
    args.gate = {gate.data(), gs};
    args.beta = {beta.data(), bs};
    args.a_log = inputs.a_log.data();
    args.dt_bias = inputs.dt_bias.data();
    args.skip = inputs.skip.data();
    args.out = {out.data(), vs};
    args.checkpoint = checkpoint.data();
    args.checkpoint_slot_stride = checkpoint_stride_;
    if (p.checkpoint == DType::kI8) {
      args.scale = static_cast<float*>(scale.data());
      args.scale_slot_stride = scale_stride_;
    }
    args.ring_key = {ring_key.data(), ring_slot(key_row_), key_row_};
    args.ring_value = {ring_value.data(), ring_slot(value_row_), value_row_};
    args.ring_gate = {ring_gate.data(), ring_slot(gate_row_), gate_row_};
    args.n_saturated = &saturated_;
    args.workspace =
        workspace_.data() + (64 - reinterpret_cast<uintptr_t>(workspace_.data()) % 64) % 64;
    if (sweep) {
      plan_->sweep(args, parallel_of(pool_));
    } else {
      plan_->step(args, parallel_of(pool_));
    }
    std::vector<float> y;
    for (int64_t t = 0; t < n_tokens; ++t) {
      for (int e = 0; e < p.n_heads * p.value_dim; ++e) {
        y.push_back(read_typed(p.activation, out.data(), t * vs + e));
      }
      for (int64_t e = p.n_heads * p.value_dim; e < vs; ++e) {  // the gap must still be poison
        if (!std::isnan(read_typed(p.activation, out.data(), t * vs + e))) y.push_back(NAN);
      }
    }
    return y;
  }

  // The stored checkpoint of a slot, [head, value, key].
  std::vector<float> state(int slot) {
    const Problem& p = problem_;
    std::vector<float> out(static_cast<size_t>(p.n_heads) * p.value_dim * p.key_dim);
    plan_->export_checkpoint(static_cast<char*>(checkpoint.data()) +
                                 slot * checkpoint_stride_ * dtype_bytes(p.checkpoint),
                             static_cast<float*>(scale.data()) + slot * scale_stride_, out.data());
    return out;
  }

 private:
  int gates() const {
    return problem_.family == Family::kKda ? problem_.n_heads * problem_.key_dim : problem_.n_heads;
  }
  int64_t ring_slot(int64_t row) const { return problem_.grid.ring_rows * row + 11; }

  Problem problem_;
  ThreadPool& pool_;
  std::shared_ptr<const Plan> plan_;
  int64_t key_row_, value_row_, gate_row_, checkpoint_stride_, scale_stride_;
  int64_t saturated_ = 0;

 public:
  Poisoned checkpoint, scale, ring_key, ring_value, ring_gate;

 private:
  std::vector<char> workspace_;
};

}  // namespace replayssm::test
