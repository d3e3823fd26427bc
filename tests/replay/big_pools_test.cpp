// Pools past 2^31 elements, of which the touched pages alone are real.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "backend_cpu.h"
#include "cases.h"
#include "isa.h"
#include "ops/parallel.h"
#include "sequence.h"

namespace replayssm::test {
namespace {

class BigPools : public EachIsa {};

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
TEST_P(BigPools, PastTwoToThe31Elements) {
  ThreadPool pool(1);
  constexpr int64_t kStride = int64_t{1} << 30;
  constexpr int kSlots = 4;
  for (DType checkpoint : {DType::kF16, DType::kI8}) {
    const Problem p = with_dtypes(problem_of(Family::kGdn, 2, 1, 24, 20, 8, 4), DType::kF32,
                                  DType::kF16, checkpoint);
    SCOPED_TRACE(name_of(p));
    const int64_t n = 2 * p.grid.interval + 3;
    const Inputs inputs(p, n, distribution_of(1));
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
      plan->step(args, parallel_of(pool));
      ASSERT_EQ(commit_step(p.grid, row, t, state), Status::kOk);
    }
    Layer small(p, cpu_backend(isa()), 3, pool);
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

REPLAYSSM_EACH_ISA(BigPools);

}  // namespace
}  // namespace replayssm::test
