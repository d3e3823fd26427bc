// Which of the problems have a kernel. A reason is a skip, and a skip that is not listed in
// expected_skips.txt is a failure (tools/gpu_test.sh). Needs no device.
#include <gtest/gtest.h>

#include "cuda_cases.h"
#include "replay/cuda/conv_cuda.h"
#include "replay/cuda/kernels_cuda.h"

namespace replayssm::test {
namespace {

class CudaPlans : public testing::TestWithParam<Case> {};

TEST_P(CudaPlans, HasAKernel) {
  const auto planned = plan_cuda(GetParam().problem);
  if (planned.plan == nullptr) {
    EXPECT_NE(planned.reason, "");
    GTEST_SKIP() << GetParam().name << ": " << planned.reason;
  }
  EXPECT_EQ(planned.reason, "");
  const Problem& p = planned.plan->problem();
  EXPECT_GE(planned.plan->checkpoint_elements(), int64_t{p.n_heads} * p.value_dim * p.key_dim);
  EXPECT_EQ(planned.plan->scale_elements() > 0, p.checkpoint == DType::kI8);
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaPlans,
                         testing::ValuesIn(unique({cuda_shapes(), cuda_dtypes(), cuda_core()})),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Cpu, CudaPlans, testing::ValuesIn(unique({shape_cases(), core_cases()})),
                         test_name);

TEST(CudaEntries, HaveAKernel) {
  for (const Case& c : unique({cuda_entries(), cuda_entries(/*persistent=*/true)})) {
    EXPECT_EQ(plan_cuda(c.problem).reason, "") << c.name;
  }
}

TEST(CudaPlanReasons, NameWhatThereIsNoKernelFor) {
  const auto reason = [](DType activation, int interval) {
    Problem p = problem_of(Family::kGdn, 4, 2, 128, 128, interval, 4);
    return plan_cuda(with_dtypes(p, activation, DType::kF16, DType::kF16)).reason;
  };
  EXPECT_EQ(reason(DType::kBF16, 16), "");
  EXPECT_EQ(reason(DType::kF16, 16), "activations are fp32 or bf16, not fp16");
  EXPECT_NE(reason(DType::kBF16, 64).find("no GDN kernel for 128x128 fp16 B64"), std::string::npos);
}

TEST(CudaConvPlans, Refusals) {
  const auto reason = [](const ConvProblem& p) { return plan_cuda(p).reason; };
  EXPECT_EQ(reason({64, 4, 8, DType::kBF16}), "");
  EXPECT_EQ(reason({64, 4, 8, DType::kF32}), "");
  EXPECT_NE(reason({20, 4, 8, DType::kBF16}).find("not 20"), std::string::npos);
  EXPECT_NE(reason({0, 4, 8, DType::kBF16}).find("not 0"), std::string::npos);
  EXPECT_NE(reason({64, 9, 12, DType::kBF16}).find("outside 2..8"), std::string::npos);
  EXPECT_NE(reason({64, 4, 3, DType::kBF16}).find("below the width 4"), std::string::npos);
  EXPECT_NE(reason({64, 4, 8, DType::kF16}).find("not fp16"), std::string::npos);
}

}  // namespace
}  // namespace replayssm::test
