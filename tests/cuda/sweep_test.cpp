// Whether the backend has a sweep; without one the suite feeds prompts by steps (cuda_backend.cpp).
#include <gtest/gtest.h>

#include "../capi/capi_args.h"
#include "cuda_cases.h"
#include "device.h"

namespace replayssm::test {
namespace {

TEST(CudaSweep, IsThere) {
  const Problem p = cuda_core()[2].problem;
  std::string reason;
  const CPlan plan = c_plan(p, RSSM_CUDA, &reason);
  ASSERT_NE(plan, nullptr) << reason;
  const Row skipped;
  const DeviceBuffer rows(std::vector<Row>{skipped}), memory(1 << 20);
  StepArgs a;
  a.rows = static_cast<const Row*>(rows.data());
  a.n_rows = 1;
  a.a_log = a.dt_bias = static_cast<const float*>(memory.data());
  a.checkpoint = memory.data();
  a.checkpoint_slot_stride = sizes_of(plan).checkpoint_elements;
  a.ring_key = a.ring_value = a.ring_gate = {memory.data(), 1 << 16, 1 << 10};
  const rssm_step_args args = to_c(a, {1, 1, 0});
  const rssm_status status = rssm_sweep(plan.get(), &args, nullptr);
  cuda_check(cudaDeviceSynchronize(), "sweep");
  if (status == RSSM_UNSUPPORTED) GTEST_SKIP() << rssm_last_error();
  EXPECT_EQ(status, RSSM_OK) << rssm_last_error();
}

}  // namespace
}  // namespace replayssm::test
