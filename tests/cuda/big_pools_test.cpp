// Pools whose offsets pass 2^31 elements. Takes some 40 GB of device memory.
#include <gtest/gtest.h>

#include "../replay/sequence.h"
#include "cuda_backend.h"
#include "cuda_cases.h"
#include "device.h"
#include "replay/cuda/kernels_cuda.h"

namespace replayssm::test {
namespace {

// Device memory as it comes.
class Raw {
 public:
  explicit Raw(int64_t bytes) {
    cuda_check(cudaMalloc(&data_, static_cast<size_t>(bytes)), "cudaMalloc");
  }
  ~Raw() { cudaFree(data_); }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

TEST(CudaBigPools, PastTwoToThe31Elements) {
  constexpr int64_t kStride = int64_t{1} << 30;
  constexpr int kSlots = 4;
  for (const DType checkpoint : {DType::kF16, DType::kI8}) {
    for (const Family family : {Family::kGdn, Family::kMamba2}) {
      Problem p = cuda_fit(problem_of(family, 2, 1, 128, 128, 16, 4));
      p.checkpoint = checkpoint;
      SCOPED_TRACE(name_of(p));
      const auto plan = plan_cuda(p).plan;
      ASSERT_NE(plan, nullptr);
      const int64_t n = 2 * p.grid.interval + 3;
      const int64_t keys = int64_t{p.n_key_heads} * p.key_dim;
      const int64_t values = int64_t{p.n_heads} * p.value_dim;
      const Inputs inputs(p, n, distribution_of(1));
      const auto bf16 = [](const std::vector<float>& x) {
        std::vector<uint16_t> bits;
        for (float f : x) bits.push_back(float_to_bf16(f));
        return bits;
      };
      const DeviceBuffer query(bf16(inputs.query)), key(bf16(inputs.key)),
          value(bf16(inputs.value)), gate(inputs.gate), beta(inputs.beta), a_log(inputs.a_log),
          dt_bias(inputs.dt_bias), skip(inputs.skip);
      const DeviceBuffer out(n * values * 2), device_row(static_cast<int64_t>(sizeof(Row)));
      const Raw states(kStride * kSlots * dtype_bytes(checkpoint)),
          scales(checkpoint == DType::kI8 ? kStride * kSlots * 4 : 16),
          ring_key(kStride * kSlots * 2), ring_value(kStride * kSlots * 2),
          ring_gate(kStride * kSlots * 4);
      StepArgs args;
      args.rows = static_cast<const Row*>(device_row.data());
      args.n_rows = 1;
      args.query = {query.data(), keys};
      args.key = {key.data(), keys};
      args.value = {value.data(), values};
      args.gate = {gate.data(), p.n_heads};
      args.beta = {beta.data(), p.n_heads};
      args.a_log = static_cast<const float*>(a_log.data());
      args.dt_bias = static_cast<const float*>(dt_bias.data());
      args.skip = static_cast<const float*>(skip.data());
      args.out = {out.data(), values};
      args.checkpoint = states.data();
      args.checkpoint_slot_stride = kStride;
      args.scale = static_cast<float*>(scales.data());
      args.scale_slot_stride = kStride;
      args.ring_key = {ring_key.data(), kStride, keys};
      args.ring_value = {ring_value.data(), kStride, values};
      args.ring_gate = {ring_gate.data(), kStride, p.n_heads};
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
        cuda_check(cudaMemcpy(device_row.data(), &row, sizeof(row), cudaMemcpyHostToDevice), "row");
        plan->step(args, nullptr);
        cuda_check(cudaDeviceSynchronize(), "step");
        ASSERT_EQ(commit_step(p.grid, row, t, state), Status::kOk);
      }
      const std::vector<uint16_t> y = out.download<uint16_t>(n * values);
      ThreadPool pool(1);
      Layer small(p, cuda_backend(), 3, pool);
      Sequence sequence(small, inputs, 1);
      sequence.decode_to(n, 1);
      for (int64_t t = 0; t < n; ++t) {
        const std::vector<float>& expected = sequence.trace.y.at(t);
        for (int64_t i = 0; i < values; ++i) {
          ASSERT_EQ(bf16_to_float(y[t * values + i]), expected[i]) << "token " << t;
        }
      }
    }
  }
}

}  // namespace
}  // namespace replayssm::test
