// A layer with its buffers, for the tests of src/replay: random inputs, pools with gaps and NaN in
// everything that a kernel must not read, and guards round what it must not write. Every run checks
// the guards.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend.h"
#include "replay/convert.h"
#include "replay/kernels.h"
#include "replay/ref/reference.h"

namespace replayssm::test {

// A test that runs once for each backend of its binary.
class EachBackend : public testing::TestWithParam<const Backend*> {
 protected:
  const Backend& backend() const { return *GetParam(); }
};

inline std::string backend_test_name(const testing::TestParamInfo<const Backend*>& info) {
  return info.param->name();
}

#define REPLAYSSM_EACH_BACKEND(suite)                                                     \
  INSTANTIATE_TEST_SUITE_P(Each, suite, testing::ValuesIn(::replayssm::test::backends()), \
                           ::replayssm::test::backend_test_name)

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
  explicit Poisoned(int64_t n_bytes) : bytes(static_cast<size_t>(n_bytes), 0xff) {}
  void* data() { return bytes.data(); }
  bool is_poison(int64_t from, int64_t to) const {
    const uint8_t* p = bytes.data() + from;
    return from == to || (*p == 0xff && std::memcmp(p, p + 1, to - from - 1) == 0);
  }
  std::vector<uint8_t> bytes;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

// Where the inputs come from. Inputs of different seeds share the layer's parameters.
struct InputDistribution {
  double gate_mean = -1.0;  // the mean of -log alpha is about e^gate_mean
  uint64_t seed = 1;
  float value_scale = 1.0f, key_scale = 1.0f;
};

// Inputs of n tokens for one layer, fp32 but rounded to the activation dtype where that applies.
struct Inputs {
  Inputs(const Problem& p, int64_t n, const InputDistribution& distribution) {
    n_gates = p.family == Family::kKda ? p.n_heads * p.key_dim : p.n_heads;
    std::mt19937_64 rng(1000 + distribution.seed);
    auto fill = [&](std::vector<float>& x, int64_t size, float scale, bool round) {
      std::normal_distribution<float> normal;
      x.resize(static_cast<size_t>(size));
      for (float& v : x) {
        v = scale * normal(rng);
        if (round && p.activation == DType::kBF16) v = bf16_to_float(float_to_bf16(v));
      }
    };
    fill(query, n * p.n_key_heads * p.key_dim, 1, true);
    fill(key, n * p.n_key_heads * p.key_dim, distribution.key_scale, true);
    fill(value, n * p.n_heads * p.value_dim, distribution.value_scale, true);
    fill(gate, n * n_gates, 1, false);
    fill(beta, n * p.n_heads, 1, false);
    rng.seed(7);
    fill(a_log, p.n_heads, 0.3f, false);
    fill(dt_bias, n_gates, 0.5f, false);
    fill(skip, p.n_heads, 1, false);
    for (float& x : dt_bias) x += static_cast<float>(distribution.gate_mean);
  }
  ref::Parameters parameters() const { return {a_log.data(), dt_bias.data(), skip.data()}; }
  ref::TokenInputs token(const Problem& p, int64_t t) const {
    return {query.data() + t * p.n_key_heads * p.key_dim,
            key.data() + t * p.n_key_heads * p.key_dim, value.data() + t * p.n_heads * p.value_dim,
            gate.data() + t * n_gates, beta.data() + t * p.n_heads};
  }
  // Takes tokens [from, to) of another's.
  void take(const Problem& p, const Inputs& other, int64_t from, int64_t to) {
    const auto copy = [&](std::vector<float>& x, const std::vector<float>& y, int64_t size) {
      std::copy(y.begin() + from * size, y.begin() + to * size, x.begin() + from * size);
    };
    copy(query, other.query, p.n_key_heads * p.key_dim);
    copy(key, other.key, p.n_key_heads * p.key_dim);
    copy(value, other.value, p.n_heads * p.value_dim);
    copy(gate, other.gate, n_gates);
    copy(beta, other.beta, p.n_heads);
  }
  std::vector<float> query, key, value, gate, beta, a_log, dt_bias, skip;
  int n_gates = 0;
};

// One row of a batch and where its inputs come from: positions of `inputs` are absolute.
struct Work {
  Row row;
  const Inputs* inputs;
};

// Throws the backend's reason if it has no plan.
inline std::shared_ptr<const BackendPlan> plan_of(const Backend& backend, const Problem& problem) {
  auto [plan, reason] = backend.plan(problem);
  if (plan == nullptr) throw std::runtime_error(name_of(problem) + ": " + reason);
  return plan;
}

// The pools of one layer for n_slots sequences, with gaps between slots and rows.
class Layer {
 public:
  Layer(const Problem& problem, const Backend& backend, int n_slots, ThreadPool& pool)
      : problem_(problem),
        pool_(pool),
        plan_(plan_of(backend, problem)),
        multiple_(backend.stride_multiple()),
        n_slots_(n_slots),
        key_row_(padded(problem.n_key_heads * problem.key_dim + 3)),
        value_row_(padded(problem.n_heads * problem.value_dim + 5)),
        gate_row_(gate_stride(gates() + 1)),
        checkpoint_stride_(padded(plan_->checkpoint_elements() + 32)),
        scale_stride_(padded(plan_->scale_elements() + 8)),
        checkpoint(checkpoint_stride_ * n_slots * dtype_bytes(problem.checkpoint)),
        scale(scale_stride_ * n_slots * 4),
        ring_key(ring_slot(key_row_) * n_slots * dtype_bytes(problem.ring)),
        ring_value(ring_slot(value_row_) * n_slots * dtype_bytes(problem.ring)),
        ring_gate(ring_slot(gate_row_) * n_slots * 4) {}

  const Problem& problem() const { return problem_; }
  int64_t saturated() const { return saturated_; }
  int64_t y_size() const { return int64_t{problem_.n_heads} * problem_.value_dim; }

  // Runs the rows; returns y of every row, [n_tokens, n_heads, value_dim], widened to fp32 (a
  // skipped row's is the poison that it must have left).
  std::vector<std::vector<float>> run(std::vector<Work> work, bool sweep) {
    const Problem& p = problem_;
    int64_t n_tokens = 1;  // the packed tokens have a hole before each row
    std::vector<Row> rows;
    for (Work& w : work) {
      w.row.token = n_tokens;
      n_tokens += w.row.n_tokens + 1;
      rows.push_back(w.row);
    }
    const int64_t qs = padded(p.n_key_heads * p.key_dim + 7), vs = padded(y_size() + 9);
    const int64_t gs = gate_stride(gates() + 2), bs = p.n_heads + 1;
    const int64_t act = dtype_bytes(p.activation);
    Poisoned q(n_tokens * qs * act), k(n_tokens * qs * act), v(n_tokens * vs * act);
    Poisoned gate(n_tokens * gs * 4), beta(n_tokens * bs * 4), out(n_tokens * vs * act);
    for (const Work& w : work) {
      for (int i = 0; i < w.row.n_tokens; ++i) {
        const ref::TokenInputs token = w.inputs->token(p, w.row.start + i);
        const int64_t at = w.row.token + i;
        pack(p.activation, q, at * qs, token.query, p.n_key_heads * p.key_dim);
        pack(p.activation, k, at * qs, token.key, p.n_key_heads * p.key_dim);
        pack(p.activation, v, at * vs, token.value, p.n_heads * p.value_dim);
        pack(DType::kF32, gate, at * gs, token.gate, gates());
        if (p.family != Family::kMamba2) pack(DType::kF32, beta, at * bs, token.beta, p.n_heads);
      }
    }
    const Inputs& layer = *work[0].inputs;
    StepArgs args;
    args.rows = rows.data();
    args.n_rows = static_cast<int32_t>(rows.size());
    args.query = {q.data(), qs};
    args.key = {k.data(), qs};
    args.value = {v.data(), vs};
    args.gate = {gate.data(), gs};
    args.beta = {beta.data(), bs};
    args.a_log = layer.a_log.data();
    args.dt_bias = layer.dt_bias.data();
    args.skip = p.family == Family::kMamba2 ? layer.skip.data() : nullptr;
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
    plan_->run(args, {n_slots_, n_slots_, n_tokens}, sweep, pool_);

    std::vector<std::vector<float>> y;
    int64_t clean_from = 0;  // bytes of `out` from here on must still be poison
    for (const Work& w : work) {
      std::vector<float>& row = y.emplace_back();
      for (int64_t t = w.row.token; t < w.row.token + w.row.n_tokens; ++t) {
        append(row, p.activation, out, t * vs, y_size());
        EXPECT_TRUE(out.is_poison(clean_from, t * vs * act)) << "out written outside its tokens";
        clean_from = (t * vs + y_size()) * act;
        if (w.row.read_slot < 0) {
          EXPECT_TRUE(out.is_poison(t * vs * act, clean_from)) << "out of a skipped row written";
        }
      }
    }
    EXPECT_TRUE(out.is_poison(clean_from, n_tokens * vs * act)) << "out written past its end";
    expect_guards();
    return y;
  }
  std::vector<float> run(const Row& row, const Inputs& inputs, bool sweep = false) {
    return run({{row, &inputs}}, sweep)[0];
  }

  // The stored checkpoint of a slot, [head, value, key].
  std::vector<float> state(int slot) {
    std::vector<float> out(static_cast<size_t>(y_size()) * problem_.key_dim);
    plan_->export_checkpoint(slot_data(slot), slot_scale(slot), out.data());
    return out;
  }
  void set_state(int slot, const std::vector<float>& canonical) {
    plan_->import_checkpoint(canonical.data(), slot_data(slot), slot_scale(slot));
  }
  void* slot_data(int slot) {
    return checkpoint.bytes.data() + slot * checkpoint_stride_ * dtype_bytes(problem_.checkpoint);
  }
  float* slot_scale(int slot) { return static_cast<float*>(scale.data()) + slot * scale_stride_; }
  // The bytes of a slot's checkpoint and scales.
  std::vector<uint8_t> slot_bytes(int slot) {
    const auto* data = static_cast<const uint8_t*>(slot_data(slot));
    std::vector<uint8_t> out(
        data, data + plan_->checkpoint_elements() * dtype_bytes(problem_.checkpoint));
    const auto* s = reinterpret_cast<const uint8_t*>(slot_scale(slot));
    out.insert(out.end(), s, s + plan_->scale_elements() * 4);
    return out;
  }
  // The bytes of token t's ring rows: value, key, gate.
  std::vector<uint8_t> ring_bytes(int slot, int64_t t) const {
    std::vector<uint8_t> out;
    const int64_t ring = dtype_bytes(problem_.ring);
    append_row(out, ring_value, slot, t, value_row_, y_size(), ring);
    append_row(out, ring_key, slot, t, key_row_, problem_.n_key_heads * problem_.key_dim, ring);
    append_row(out, ring_gate, slot, t, gate_row_, gates(), 4);
    return out;
  }
  // Sets a whole ring slot, or a checkpoint slot, back to NaN.
  void poison_ring(int slot) {
    const int64_t ring = dtype_bytes(problem_.ring);
    poison(ring_value, slot, ring_slot(value_row_) * ring);
    poison(ring_key, slot, ring_slot(key_row_) * ring);
    poison(ring_gate, slot, ring_slot(gate_row_) * 4);
  }
  void poison_slot(int slot) {
    poison(checkpoint, slot, checkpoint_stride_ * dtype_bytes(problem_.checkpoint));
    poison(scale, slot, scale_stride_ * 4);
  }

  // Poisons every ring row of the slot but those of tokens [from, to).
  void keep_only(int slot, int64_t from, int64_t to) {
    const Poisoned value = ring_value, key = ring_key, gate = ring_gate;
    poison_ring(slot);
    for (int64_t t = from; t < to; ++t) copy_token(value, key, gate, slot, slot, t);
  }
  // Copies the ring rows of tokens [from, to) to another slot.
  void copy_rows(int from_slot, int to_slot, int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t) {
      copy_token(ring_value, ring_key, ring_gate, from_slot, to_slot, t);
    }
  }

  // Everything between slots and rows is still poison.
  void expect_guards() const {
    const int64_t ring = dtype_bytes(problem_.ring);
    for (int slot = 0; slot < n_slots_; ++slot) {
      expect_tail(checkpoint, slot, checkpoint_stride_, plan_->checkpoint_elements(),
                  dtype_bytes(problem_.checkpoint));
      expect_tail(scale, slot, scale_stride_, plan_->scale_elements(), 4);
      expect_row_gaps(ring_value, slot, value_row_, y_size(), ring);
      expect_row_gaps(ring_key, slot, key_row_, problem_.n_key_heads * problem_.key_dim, ring);
      expect_row_gaps(ring_gate, slot, gate_row_, gates(), 4);
    }
  }

 private:
  int gates() const {
    return problem_.family == Family::kKda ? problem_.n_heads * problem_.key_dim : problem_.n_heads;
  }
  int64_t padded(int64_t n) const { return (n + multiple_ - 1) / multiple_ * multiple_; }
  // Gates a head need no stride but their own.
  int64_t gate_stride(int64_t n) const { return problem_.family == Family::kKda ? padded(n) : n; }
  int64_t ring_slot(int64_t row) const { return padded(problem_.grid.ring_rows * row + 11); }

  static void pack(DType dtype, Poisoned& to, int64_t at, const float* from, int64_t n) {
    if (dtype == DType::kF32) {
      std::memcpy(to.bytes.data() + at * 4, from, n * 4);
      return;
    }
    for (int64_t i = 0; i < n; ++i) write_typed(dtype, to.data(), at + i, from[i]);
  }
  static void append(std::vector<float>& to, DType dtype, Poisoned& from, int64_t at, int64_t n) {
    const size_t size = to.size();
    to.resize(size + n);
    if (dtype == DType::kF32) {
      std::memcpy(to.data() + size, from.bytes.data() + at * 4, n * 4);
      return;
    }
    for (int64_t i = 0; i < n; ++i) to[size + i] = read_typed(dtype, from.data(), at + i);
  }
  static void poison(Poisoned& pool, int slot, int64_t slot_bytes) {
    std::memset(pool.bytes.data() + slot * slot_bytes, 0xff, static_cast<size_t>(slot_bytes));
  }
  void copy_token(const Poisoned& value, const Poisoned& key, const Poisoned& gate, int from_slot,
                  int to_slot, int64_t t) {
    const int64_t ring = dtype_bytes(problem_.ring);
    copy_row(value, ring_value, from_slot, to_slot, t, value_row_, y_size(), ring);
    copy_row(key, ring_key, from_slot, to_slot, t, key_row_,
             problem_.n_key_heads * problem_.key_dim, ring);
    copy_row(gate, ring_gate, from_slot, to_slot, t, gate_row_, gates(), 4);
  }
  void copy_row(const Poisoned& from, Poisoned& to, int from_slot, int to_slot, int64_t t,
                int64_t row, int64_t size, int64_t element) const {
    const int64_t at = problem_.grid.row_of(t) * row;
    std::copy_n(from.bytes.data() + (from_slot * ring_slot(row) + at) * element, size * element,
                to.bytes.data() + (to_slot * ring_slot(row) + at) * element);
  }
  void append_row(std::vector<uint8_t>& out, const Poisoned& pool, int slot, int64_t t, int64_t row,
                  int64_t size, int64_t element) const {
    const uint8_t* from =
        pool.bytes.data() + (slot * ring_slot(row) + problem_.grid.row_of(t) * row) * element;
    out.insert(out.end(), from, from + size * element);
  }
  static void expect_tail(const Poisoned& pool, int slot, int64_t stride, int64_t used,
                          int64_t element) {
    EXPECT_TRUE(pool.is_poison((slot * stride + used) * element, (slot + 1) * stride * element))
        << "written past slot " << slot;
  }
  void expect_row_gaps(const Poisoned& pool, int slot, int64_t row, int64_t used,
                       int64_t element) const {
    const int64_t base = slot * ring_slot(row);
    for (int64_t r = 0; r < problem_.grid.ring_rows; ++r) {
      EXPECT_TRUE(
          pool.is_poison((base + r * row + used) * element, (base + (r + 1) * row) * element))
          << "written past ring row " << r << " of slot " << slot;
    }
    EXPECT_TRUE(pool.is_poison((base + problem_.grid.ring_rows * row) * element,
                               (base + ring_slot(row)) * element))
        << "written past ring slot " << slot;
  }

  Problem problem_;
  ThreadPool& pool_;
  std::shared_ptr<const BackendPlan> plan_;
  int64_t multiple_;
  int n_slots_;
  int64_t key_row_, value_row_, gate_row_, checkpoint_stride_, scale_stride_;
  int64_t saturated_ = 0;

 public:
  Poisoned checkpoint, scale, ring_key, ring_value, ring_gate;
};

}  // namespace replayssm::test
