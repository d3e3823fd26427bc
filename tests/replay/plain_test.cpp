// The plain baseline against the recurrence in double: windows, snapshots, prompts.
#include "replay/plain.h"

#include <gtest/gtest.h>

#include <cmath>

#include "harness.h"
#include "isa.h"
#include "ops/parallel.h"

namespace replayssm::test {
namespace {

// Runs one window of a single sequence; returns y.
std::vector<float> run_plain(const PlainPlan& plan, const Inputs& in,
                             std::vector<uint8_t>& pool_bytes, int64_t slot_stride, Row row,
                             const std::vector<int32_t>& write_slots, ThreadPool& pool) {
  const Problem& p = plan.problem();
  PlainArgs args;
  std::vector<float> out(static_cast<size_t>(row.n_tokens) * p.n_heads * p.value_dim);
  const int64_t first = row.start;
  const ref::TokenInputs token = in.token(p, first);
  row.token = 0;
  args.base.rows = &row;
  args.base.n_rows = 1;
  args.base.query = {token.query, p.n_key_heads * p.key_dim};
  args.base.key = {token.key, p.n_key_heads * p.key_dim};
  args.base.value = {token.value, p.n_heads * p.value_dim};
  args.base.gate = {token.gate, in.n_gates};
  args.base.beta = {token.beta, p.n_heads};
  args.base.a_log = in.a_log.data();
  args.base.dt_bias = in.dt_bias.data();
  args.base.skip = in.skip.data();
  args.base.out = {out.data(), p.n_heads * p.value_dim};
  char* aligned =
      reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(pool_bytes.data()) + 63) / 64 * 64);
  args.base.checkpoint = aligned;
  args.base.checkpoint_slot_stride = slot_stride;
  args.write_slots = write_slots.data();
  args.write_slots_stride = static_cast<int32_t>(write_slots.size());
  std::vector<char> workspace(plan.workspace_bytes(pool.size()) + 64);
  args.base.workspace =
      workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64);
  plan.run(args, parallel_of(pool));
  return out;
}

class Plain : public testing::TestWithParam<std::tuple<Isa, Family, DType>> {};

TEST_P(Plain, FollowsTheRecurrenceAndKeepsEverySnapshot) {
  const auto [isa, family, dtype] = GetParam();
  ThreadPool pool(2);
  Problem p;
  p.family = family;
  p.n_heads = 4;
  p.n_key_heads = family == Family::kKda ? 4 : 2;
  p.value_dim = 40;
  p.key_dim = 20;
  p.grid = {16, Grid::rows_for(16, 8)};
  p.max_window = 8;
  p.checkpoint = dtype;
  const auto plan = plan_plain_cpu(p, isa).plan;
  ASSERT_NE(plan, nullptr);
  const int64_t n = 60;
  const Inputs in(p, n, {});
  ref::Recurrence truth(p, in.parameters());
  std::vector<double> expected;
  for (int64_t t = 0; t < n; ++t) {
    for (double y : truth.append(in.token(p, t))) expected.push_back(y);
  }

  const int64_t stride = (plan->checkpoint_elements() + 63) / 64 * 64;
  constexpr int kSlots = 6;
  std::vector<uint8_t> state(static_cast<size_t>(stride * kSlots * dtype_bytes(dtype) + 64), 0xff);
  std::vector<float> y;
  // A prompt of 21, then windows of four with a snapshot each, of which two tokens are accepted;
  // the rest again.
  std::vector<int32_t> slots(21, -1);
  slots.back() = 0;
  y = run_plain(*plan, in, state, stride, {0, 0, 0, 21, 0, 0, 0, 0}, slots, pool);
  int current = 0;
  for (int64_t at = 21; at < n;) {
    const int window = static_cast<int>(std::min<int64_t>(4, n - at));
    std::vector<int32_t> snapshots;
    for (int i = 0; i < window; ++i) snapshots.push_back((current + 1 + i) % kSlots);
    const auto part =
        run_plain(*plan, in, state, stride, {at, 0, at, window, 0, current, 0, 0}, snapshots, pool);
    const int n_accepted = std::min(window, 2);
    y.insert(y.end(), part.begin(), part.begin() + n_accepted * p.n_heads * p.value_dim);
    current = snapshots[n_accepted - 1];
    at += n_accepted;
  }
  ASSERT_EQ(y.size(), expected.size());
  double num = 0, den = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    num += (y[i] - expected[i]) * (y[i] - expected[i]);
    den += expected[i] * expected[i];
  }
  const double bound = dtype == DType::kF32 ? 1e-6 : dtype == DType::kF16 ? 2e-3 : 1.5e-2;
  EXPECT_LT(std::sqrt(num / den), bound);
}

std::string case_name(const testing::TestParamInfo<Plain::ParamType>& info) {
  const auto [isa, family, dtype] = info.param;
  const char* name = family == Family::kMamba2 ? "mamba2" : family == Family::kGdn ? "gdn" : "kda";
  return isa_text(isa) + "_" + name + "_" + dtype_name(dtype);
}

INSTANTIATE_TEST_SUITE_P(All, Plain,
                         testing::Combine(testing::ValuesIn(supported_isas()),
                                          testing::Values(Family::kMamba2, Family::kGdn,
                                                          Family::kKda),
                                          testing::Values(DType::kF32, DType::kF16, DType::kBF16)),
                         case_name);

}  // namespace
}  // namespace replayssm::test
