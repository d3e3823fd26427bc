// NaN and infinities in drafts, fp16 saturation, pools past 2^31 elements.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "cases.h"
#include "sequence.h"

namespace replayssm::test {
namespace {

class Hostile : public EachIsa {
 protected:
  ThreadPool pool_{1};
};

// A bad draft reaches no earlier token of its window; rejected, it reaches nothing at all.
TEST_P(Hostile, ABadDraftStaysWhereItIs) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(), 1e38f};
  for (const Case& c : core_cases()) {
    SCOPED_TRACE(c.name);
    const Problem& p = c.problem;
    const int window = p.max_window;
    const int64_t n = p.grid.interval + 2 * window;
    const Inputs inputs(p, n + window, law_of(1));
    Layer plain(p, isa(), 3, pool_);
    Sequence never(plain, inputs, 1);
    never.decode_to(n + window, 1);
    for (int field = 0; field < (p.family == Family::kMamba2 ? 4 : 5); ++field) {
      for (float value : bad) {
        SCOPED_TRACE(std::to_string(field) + " " + std::to_string(value));
        Layer layer(p, isa(), 3, pool_);
        Sequence sequence(layer, inputs, 1);
        // The first window lies in an interval, the second crosses a grid point.
        sequence.decode_to(p.grid.interval - window - 1, 1);
        while (sequence.n() < n) {
          const int late = window - 1 - static_cast<int>(sequence.n() % 2);
          const int64_t t = sequence.n() + late;
          Inputs poisoned = inputs;
          const auto fill = [&](std::vector<float>& x, int64_t size) {
            std::fill_n(x.begin() + t * size, size, value);
          };
          if (field == 0) fill(poisoned.query, p.n_key_heads * p.key_dim);
          if (field == 1) fill(poisoned.key, p.n_key_heads * p.key_dim);
          if (field == 2) fill(poisoned.value, layer.y_size());
          if (field == 3) fill(poisoned.gate, poisoned.n_gates);
          if (field == 4) fill(poisoned.beta, p.n_heads);
          sequence.step(window, late, &poisoned);
          sequence.step(1, 1);
        }
        sequence.decode_to(n + window, window);
        expect_same(sequence.trace, never.trace, n);
      }
    }
  }
}

// A NaN that was committed is not washed out by any checkpoint.
TEST_P(Hostile, ACommittedNanStaysVisible) {
  for (DType checkpoint : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
      const Problem p = with_dtypes(problem_of(Family::kGdn, 2, 1, 24, 20, 8, 1), DType::kF32,
                                    DType::kF32, checkpoint);
      SCOPED_TRACE(dtype_name(checkpoint));
      Inputs inputs(p, 20, law_of(1));
      inputs.value[3 * 48 + 5] = bad;  // head 0, value row 5
      Layer layer(p, isa(), 3, pool_);
      Sequence sequence(layer, inputs, 1);
      sequence.decode_to(17, 1);
      const std::vector<float>& state = sequence.trace.states.at(8);
      for (int64_t row = 0; row < layer.y_size(); ++row) {
        for (int k = 0; k < p.key_dim; ++k) {
          const bool finite = std::isfinite(state[row * p.key_dim + k]);
          EXPECT_EQ(finite, row != 5 || !std::isnan(bad)) << row << " " << k;
        }
      }
      EXPECT_EQ(std::isnan(sequence.trace.y.at(16)[5]), std::isnan(bad));
    }
  }
}

int64_t count_largest(const std::vector<float>& x) {
  return std::count_if(x.begin(), x.end(), [](float v) { return std::fabs(v) == kHalfMax; });
}

// Values past 65504 saturate in an fp16 ring, stay finite, and are counted once: by token, by
// window and by sweep alike, however many units of work share a key head.
TEST_P(Hostile, RingSaturation) {
  for (Problem p : {problem_of(Family::kMamba2, 12, 1, 24, 20, 8, 5),
                    problem_of(Family::kMamba2, 6, 2, 40, 20, 16, 8),
                    problem_of(Family::kGdn, 12, 2, 24, 20, 8, 5),
                    problem_of(Family::kKda, 2, 2, 24, 20, 8, 5)}) {
    SCOPED_TRACE(name_of(p));
    p.ring = DType::kF16;
    const int64_t n = 3 * p.grid.interval + 2;
    Inputs inputs(p, n, law_of(1, 1e6f));
    if (p.family == Family::kMamba2) {
      for (size_t i = 0; i < inputs.key.size(); i += 7) inputs.key[i] = 1e6f;
    }
    int64_t expected = 0;
    Layer tokens(p, isa(), 3, pool_);
    Sequence one(tokens, inputs, 1);
    while (one.n() < n) {
      one.step(1, 1);
      // The row just written: values past the range are held as +-65504.
      const std::vector<uint8_t> row = tokens.ring_bytes(1, one.n() - 1);
      std::vector<float> values(tokens.y_size() + p.n_key_heads * p.key_dim);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = read_typed(DType::kF16, row.data(), static_cast<int64_t>(i));
      }
      expected += count_largest(values);
      ASSERT_EQ(tokens.saturated(), expected);
    }
    EXPECT_GT(expected, 20);
    for (const auto& [t, y] : one.trace.y) {
      for (float v : y) ASSERT_TRUE(std::isfinite(v));
    }
    for (int way = 0; way < 2; ++way) {
      Layer layer(p, isa(), 3, pool_);
      Sequence sequence(layer, inputs, 1);
      if (way == 0) {
        sequence.decode_to(n, p.max_window);
      } else {
        sequence.sweep(n);
      }
      EXPECT_EQ(layer.saturated(), expected) << (way == 0 ? "windows" : "sweep");
      expect_same(sequence.trace, one.trace, n);
    }
  }
}

// Checkpoint values past 65504 saturate and are counted once, when their fold is written, however
// often windows across the grid point had folded on chip before.
TEST_P(Hostile, CheckpointSaturation) {
  for (Problem p : {problem_of(Family::kMamba2, 4, 2, 24, 20, 8, 8),
                    problem_of(Family::kGdn, 4, 2, 24, 20, 8, 8),
                    problem_of(Family::kKda, 2, 2, 24, 20, 8, 8)}) {
    SCOPED_TRACE(name_of(p));
    p.checkpoint = DType::kF16;
    const int64_t n = 4 * p.grid.interval;
    const Inputs inputs(p, n + 8, law_of(1, 1.5e5f));
    Layer tokens(p, isa(), 3, pool_);
    Sequence one(tokens, inputs, 1);
    one.decode_to(n, 1);
    one.fold_only();
    int64_t expected = 0;
    for (const auto& [c, state] : one.trace.states) {
      expected += count_largest(state);
      for (float v : state) ASSERT_TRUE(std::isfinite(v));
    }
    EXPECT_GT(expected, 20);
    EXPECT_EQ(tokens.saturated(), expected);
    for (int way = 0; way < 3; ++way) {
      Layer layer(p, isa(), 3, pool_);
      Sequence sequence(layer, inputs, 1);
      if (way == 0) {
        sequence.sweep(n);
      } else {
        while (sequence.n() < n) {
          sequence.step(8, way == 1 ? 3 : 0);  // crosses, mostly rejected
          if (way == 2) sequence.step(1, 1);
        }
        ASSERT_GE(sequence.n(), n);
      }
      sequence.fold_only();
      const int64_t beyond =
          sequence.state.c > n ? count_largest(layer.state(sequence.state.checkpoint_slot)) : 0;
      EXPECT_EQ(layer.saturated() - beyond, expected) << way;
    }
  }
}

// Memory that is only reserved: touched pages alone become real.
class Reserved {
 public:
  explicit Reserved(int64_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Reserved() { munmap(data_, static_cast<size_t>(bytes_)); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  char* data() const { return static_cast<char*>(data_); }

 private:
  int64_t bytes_;
  void* data_;
};

// Slots whose offsets pass 2^31 elements in every pool.
TEST_P(Hostile, PoolsPastTwoToThe31Elements) {
  constexpr int64_t kStride = int64_t{1} << 30;
  constexpr int kSlots = 4;
  for (DType checkpoint : {DType::kF16, DType::kI8}) {
    const Problem p = with_dtypes(problem_of(Family::kGdn, 2, 1, 24, 20, 8, 4), DType::kF32,
                                  DType::kF16, checkpoint);
    SCOPED_TRACE(name_of(p));
    const int64_t n = 2 * p.grid.interval + 3;
    const Inputs inputs(p, n, law_of(1));
    const auto plan = plan_cpu(p, isa()).plan;
    Reserved states(kStride * kSlots * dtype_bytes(checkpoint)), scales(kStride * kSlots * 4),
        ring_value(kStride * kSlots * 2), ring_key(kStride * kSlots * 2),
        ring_gate(kStride * kSlots * 4);
    ASSERT_TRUE(states.ok() && scales.ok() && ring_value.ok() && ring_key.ok() && ring_gate.ok());
    std::vector<char> workspace(plan->workspace_bytes(1) + 64);
    std::vector<float> y(static_cast<size_t>(n) * p.n_heads * p.value_dim);
    const ref::TokenInputs first = inputs.token(p, 0);
    StepArgs args;
    args.query = {first.query, p.key_dim};
    args.key = {first.key, p.key_dim};
    args.value = {first.value, p.n_heads * p.value_dim};
    args.gate = {first.gate, p.n_heads};
    args.beta = {first.beta, p.n_heads};
    args.a_log = inputs.a_log.data();
    args.dt_bias = inputs.dt_bias.data();
    args.out = {y.data(), p.n_heads * p.value_dim};
    args.checkpoint = states.data();
    args.checkpoint_slot_stride = kStride;
    args.scale = reinterpret_cast<float*>(scales.data());
    args.scale_slot_stride = kStride;
    args.ring_value = {ring_value.data(), kStride, p.n_heads * p.value_dim};
    args.ring_key = {ring_key.data(), kStride, p.key_dim};
    args.ring_gate = {ring_gate.data(), kStride, p.n_heads};
    args.workspace =
        workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
    SequenceState state{0, 0, 3, 3};
    while (state.n < n) {
      const int t = static_cast<int>(std::min<int64_t>(p.max_window, n - state.n));
      const Row row{state.n,
                    state.c,
                    state.n,
                    t,
                    state.n,
                    state.checkpoint_slot,
                    5 - state.checkpoint_slot,  // 3, 2, 3, ..
                    state.ring_slot};
      args.rows = &row;
      args.n_rows = 1;
      plan->step(args, parallel_of(pool_));
      ASSERT_EQ(commit_step(p.grid, row, t, state), Status::kOk);
    }
    Layer small(p, isa(), 3, pool_);
    Sequence sequence(small, inputs, 1);
    sequence.decode_to(n, 1);
    for (int64_t t = 0; t < n; ++t) {
      const std::vector<float>& expected = sequence.trace.y.at(t);
      ASSERT_EQ(0, std::memcmp(y.data() + t * small.y_size(), expected.data(),
                               expected.size() * sizeof(float)))
          << t;
    }
  }
}

REPLAYSSM_EACH_ISA(Hostile);

}  // namespace
}  // namespace replayssm::test
