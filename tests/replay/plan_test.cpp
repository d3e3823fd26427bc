// plan() says yes or why not, once.
#include <gtest/gtest.h>

#include "cases.h"
#include "harness.h"
#include "isa.h"

namespace replayssm::test {
namespace {

Problem valid() { return problem_of(Family::kGdn, 4, 2, 64, 64, 16, 8); }

void expect_reason(const Problem& p, const std::string& part) {
  const PlanResult<Plan> result = plan_cpu(p, Isa::kPortable);
  EXPECT_EQ(result.plan, nullptr) << part;
  EXPECT_NE(result.reason.find(part), std::string::npos) << result.reason;
}

void expect_reason(const ConvProblem& p, const std::string& part) {
  const PlanResult<ConvPlan> result = plan_cpu(p, Isa::kPortable);
  EXPECT_EQ(result.plan, nullptr) << part;
  EXPECT_NE(result.reason.find(part), std::string::npos) << result.reason;
}

TEST(PlanTest, EveryCaseHasAPlan) {
  for (Isa isa : supported_isas()) {
    for (const std::vector<Case>& cases : {shape_cases(), dtype_cases(), core_cases()}) {
      for (const Case& c : cases) {
        const PlanResult<Plan> result = plan_cpu(c.problem, isa);
        EXPECT_NE(result.plan, nullptr) << c.name << ": " << result.reason;
        EXPECT_EQ(result.reason, "") << c.name;
      }
    }
  }
}

TEST(PlanTest, Refusals) {
  ASSERT_NE(plan_cpu(valid(), Isa::kPortable).plan, nullptr);
  const auto with = [](auto change) {
    Problem p = valid();
    change(p);
    return p;
  };
  const std::string heads = "is not a multiple of n_key_heads";
  expect_reason(with([](Problem& p) { p.n_heads = 3; }), "n_heads 3 " + heads + " 2");
  expect_reason(with([](Problem& p) { p.n_heads = 0; }), heads);
  expect_reason(with([](Problem& p) { p.n_heads = -4; }), heads);
  expect_reason(with([](Problem& p) { p.n_key_heads = 0; }), heads);
  expect_reason(with([](Problem& p) { p.n_key_heads = -2; }), heads);
  expect_reason(with([](Problem& p) { p.family = Family::kKda; }), "n_key_heads == n_heads");
  for (float bound : {0.0f, 1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    expect_reason(with([&](Problem& p) {
                    p.family = Family::kKda;
                    p.n_key_heads = p.n_heads;
                    p.decay_gate = DecayGate::kBounded;
                    p.decay_lower_bound = bound;
                  }),
                  "decay_lower_bound below 0");
  }
  for (int dim : {0, -1, 1025}) {
    expect_reason(with([&](Problem& p) { p.value_dim = dim; }), "outside 1..1024");
    expect_reason(with([&](Problem& p) { p.key_dim = dim; }), "outside 1..1024");
  }
  for (int interval : {0, -16, 1, 4, 12, 17, 128}) {
    expect_reason(with([&](Problem& p) { p.grid.interval = interval; }), "is not 8, 16, 32 or 64");
  }
  for (int window : {0, -1, 17}) {
    expect_reason(with([&](Problem& p) { p.max_window = window; }), "outside 1..16");
  }
  expect_reason(with([](Problem& p) { p.grid.ring_rows = 30; }),
                "is below B + 2 max_window - 1 = 31");
  EXPECT_NE(plan_cpu(with([](Problem& p) { p.grid.ring_rows = 31; }), Isa::kPortable).plan,
            nullptr);
  EXPECT_NE(plan_cpu(with([](Problem& p) { p.grid.ring_rows = 50; }), Isa::kPortable).plan,
            nullptr);
  expect_reason(with([](Problem& p) { p.activation = DType::kF16; }), "not fp16");
  expect_reason(with([](Problem& p) { p.activation = DType::kI8; }), "not int8");
  expect_reason(with([](Problem& p) { p.ring = DType::kI8; }), "not int8");
}

TEST(PlanTest, ConvRefusals) {
  const ConvProblem valid{10, 4, 11, DType::kF32};
  ASSERT_NE(plan_cpu(valid, Isa::kPortable).plan, nullptr);
  expect_reason(ConvProblem{0, 4, 11, DType::kF32}, "n_channels 0");
  expect_reason(ConvProblem{10, 1, 11, DType::kF32}, "outside 2..8");
  expect_reason(ConvProblem{10, 9, 11, DType::kF32}, "outside 2..8");
  expect_reason(ConvProblem{10, 4, 3, DType::kF32}, "below the width 4");
  expect_reason(ConvProblem{10, 4, 11, DType::kF16}, "not fp16");
}

TEST(PlanTest, AnInstructionSetThatIsMissingIsAReason) {
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    const PlanResult<Plan> result = plan_cpu(valid(), isa);
    EXPECT_EQ(result.plan != nullptr, isa_supported(isa));
    EXPECT_EQ(result.reason,
              isa_supported(isa) ? "" : std::string("this machine has no ") + isa_name(isa));
  }
  EXPECT_TRUE(isa_supported(Isa::kPortable));
  EXPECT_TRUE(isa_supported(best_isa()));
}

TEST(PlanTest, Sizes) {
  Problem p = valid();
  p.value_dim = 24;
  p.checkpoint = DType::kF16;
  const auto plan = plan_cpu(p, Isa::kPortable).plan;
  EXPECT_EQ(plan->checkpoint_elements(), 4 * 32 * 64);  // value rows in tiles of sixteen
  EXPECT_EQ(plan->scale_elements(), 0);
  EXPECT_EQ(plan->workspace_bytes(3), 3 * plan->workspace_bytes(1));
  EXPECT_EQ(plan->workspace_bytes(1) % 64, 0u);
  p.checkpoint = DType::kI8;
  EXPECT_EQ(plan_cpu(p, Isa::kPortable).plan->scale_elements(), 4 * 32);
}

}  // namespace
}  // namespace replayssm::test
