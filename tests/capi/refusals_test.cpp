// Bad host input: every field that can be checked is refused with its status and a line that names
// it, and nothing is written.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "capi_args.h"

namespace replayssm::test {
namespace {

constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
constexpr int32_t kMax32 = std::numeric_limits<int32_t>::max();
constexpr int kSlots = 3, kTokens = 8;

Problem problem_with(Family family, DType checkpoint) {
  return with_dtypes(problem_of(family, 2, 2, 24, 20, 8, 4), DType::kBF16, DType::kF16, checkpoint);
}

// A valid call over its own memory, to be broken in one field at a time.
struct Call {
  explicit Call(const Problem& p) : problem(p), plan(c_plan(p, RSSM_CPU, &reason)) {
    const rssm_sizes sizes = sizes_of(plan);
    const int64_t rows = p.grid.ring_rows;
    const auto zeros = [&](int64_t bytes) {
      memory.emplace_back(static_cast<size_t>(bytes / 8 + 8), 0.0);
      return static_cast<void*>(memory.back().data());
    };
    const auto ring = [&](int64_t elements, int64_t bytes) {
      return rssm_ring{zeros(kSlots * rows * elements * bytes), rows * elements, elements};
    };
    args.size = sizeof(args);
    args.rows = row;
    args.row_bytes = sizeof(rssm_row);
    args.n_rows = 2;
    args.n_slots = args.n_ring_slots = kSlots;
    args.n_tokens = kTokens;
    args.query = {zeros(kTokens * 40 * 2), 40};
    args.key = {zeros(kTokens * 40 * 2), 40};
    args.value = {zeros(kTokens * 48 * 2), 48};
    args.gate = {zeros(kTokens * 40 * 4), p.family == Family::kKda ? 40 : 2};
    args.beta = {zeros(kTokens * 2 * 4), 2};
    args.out = {zeros(kTokens * 48 * 2), 48};
    args.a_log = static_cast<float*>(zeros(8));
    args.dt_bias = static_cast<float*>(zeros(40 * 4));
    args.skip = static_cast<float*>(zeros(8));
    args.checkpoint = zeros(kSlots * sizes.checkpoint_elements * dtype_bytes(p.checkpoint));
    args.checkpoint_slot_stride = sizes.checkpoint_elements;
    args.scale = static_cast<float*>(zeros(kSlots * sizes.scale_elements * 4));
    args.scale_slot_stride = sizes.scale_elements;
    args.ring_value = ring(sizes.ring_value_elements, 2);
    args.ring_key = ring(sizes.ring_key_elements, 2);
    args.ring_gate = ring(sizes.ring_gate_elements, 4);
    args.n_saturated = &saturated;
    workspace.resize(rssm_workspace_bytes(plan.get(), 2) / 64 + 1);
    args.workspace = workspace.data();
    args.workspace_bytes = rssm_workspace_bytes(plan.get(), 2);
    args.parallel = &parallel;
    parallel.size = sizeof(parallel);
    parallel.run = [](void*, int64_t count, void (*function)(const void*, int64_t, int),
                      const void* arg) {
      for (int64_t i = 0; i < count; ++i) function(arg, i, static_cast<int>(i % 2));
    };
    parallel.n_workers = 2;
    row[0] = {18, 8, 19, 3, 0, 0, 0, 1, 0, 0};
    row[1] = {4, 0, 4, 4, 0, 3, 2, 2, 2, 0};
  }

  struct alignas(64) Line {
    char bytes[64];
  };
  Problem problem;
  std::string reason;
  CPlan plan;
  rssm_row row[2];
  rssm_step_args args = {};
  rssm_parallel_for parallel = {};
  int64_t saturated = 0;
  std::vector<std::vector<double>> memory;
  std::vector<Line> workspace;
};

using Function = rssm_status (*)(const rssm_plan*, const rssm_step_args*, void*);

struct Fault {
  const char* names;  // what the line must hold
  rssm_status status;
  std::function<void(Call&)> breaks;
};

void expect_refused(const Problem& p, Function run, const Fault& fault,
                    const std::function<void(Call&)>& prepare) {
  SCOPED_TRACE(fault.names);
  Call call(p);
  ASSERT_NE(call.plan, nullptr) << call.reason;
  prepare(call);
  fault.breaks(call);
  const auto before = call.memory;
  EXPECT_EQ(run(call.plan.get(), &call.args, nullptr), fault.status) << rssm_last_error();
  EXPECT_NE(std::string(rssm_last_error()).find(fault.names), std::string::npos)
      << rssm_last_error();
  EXPECT_EQ(before, call.memory);
  EXPECT_EQ(call.saturated, 0);
}

std::vector<Fault> step_faults(const Problem& p) {
  const auto misaligned = [](auto* pointer) {
    using Pointer = decltype(pointer);
    return reinterpret_cast<Pointer>(reinterpret_cast<uintptr_t>(pointer) + 1);
  };
  std::vector<Fault> faults = {
      {"args.size", RSSM_BAD_SIZE, [](Call& c) { c.args.size = 0; }},
      {"args.size", RSSM_BAD_SIZE, [](Call& c) { c.args.size += 8; }},
      {"row_bytes", RSSM_BAD_SIZE, [](Call& c) { c.args.row_bytes = 48; }},
      {"n_rows", RSSM_OUT_OF_RANGE, [](Call& c) { c.args.n_rows = -1; }},
      {"n_slots", RSSM_OUT_OF_RANGE, [](Call& c) { c.args.n_slots = 0; }},
      {"n_ring_slots", RSSM_OUT_OF_RANGE, [](Call& c) { c.args.n_ring_slots = -5; }},
      {"rows", RSSM_NULL, [](Call& c) { c.args.rows = nullptr; }},
      {"rows", RSSM_MISALIGNED, [=](Call& c) { c.args.rows = misaligned(c.args.rows); }},
      {"a_log", RSSM_NULL, [](Call& c) { c.args.a_log = nullptr; }},
      {"dt_bias", RSSM_NULL, [](Call& c) { c.args.dt_bias = nullptr; }},
      {"checkpoint", RSSM_NULL, [](Call& c) { c.args.checkpoint = nullptr; }},
      {"checkpoint_slot_stride", RSSM_OUT_OF_RANGE,
       [](Call& c) { --c.args.checkpoint_slot_stride; }},
      {"checkpoint_slot_stride", RSSM_OUT_OF_RANGE,
       [](Call& c) { c.args.checkpoint_slot_stride = kMax64; }},
      {"ring_value", RSSM_NULL, [](Call& c) { c.args.ring_value.data = nullptr; }},
      {"ring_value.row_stride", RSSM_OUT_OF_RANGE, [](Call& c) { --c.args.ring_value.row_stride; }},
      {"ring_key.slot_stride", RSSM_OUT_OF_RANGE, [](Call& c) { --c.args.ring_key.slot_stride; }},
      {"ring_key.row_stride", RSSM_OUT_OF_RANGE,
       [](Call& c) { c.args.ring_key.row_stride = kMax64; }},
      {"ring_gate", RSSM_MISALIGNED,
       [=](Call& c) { c.args.ring_gate.data = misaligned(c.args.ring_gate.data); }},
      {"ring_gate.slot_stride", RSSM_OUT_OF_RANGE,
       [](Call& c) { c.args.ring_gate.slot_stride = -1; }},
      {"n_saturated", RSSM_MISALIGNED,
       [=](Call& c) { c.args.n_saturated = misaligned(c.args.n_saturated); }},
      {"workspace", RSSM_NULL, [](Call& c) { c.args.workspace = nullptr; }},
      {"workspace", RSSM_MISALIGNED,
       [](Call& c) { c.args.workspace = static_cast<char*>(c.args.workspace) + 8; }},
      {"workspace_bytes", RSSM_OUT_OF_RANGE, [](Call& c) { --c.args.workspace_bytes; }},
      {"parallel.size", RSSM_BAD_SIZE, [](Call& c) { c.parallel.size = 4; }},
      {"parallel.run", RSSM_NULL, [](Call& c) { c.parallel.run = nullptr; }},
      {"parallel.n_workers", RSSM_OUT_OF_RANGE, [](Call& c) { c.parallel.n_workers = 0; }},
      {"rows[0].n ", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[0].n = -1; }},
      {"rows[1].n ", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[1].n = kMax64; }},
      {"rows[0].c ", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[0].c = 0; }},
      {"rows[0].c ", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[0].c = 12; }},
      {"rows[1].c ", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[1].c = -8; }},
      {"rows[1].c ", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[1].c = 8; }},
      {"rows[0].start", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[0].start = 17; }},
      {"rows[0].start", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[0].start = kMax64; }},
      {"rows[1].n_tokens", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[1].n_tokens = -1; }},
      {"rows[0].read_slot", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[0].read_slot = kSlots; }},
      {"rows[0].read_slot", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[0].read_slot = -2; }},
      {"rows[0].write_slot", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[0].write_slot = -1; }},
      {"rows[0].write_slot", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[0].write_slot = kMax32; }},
      {"rows[1].ring_slot", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[1].ring_slot = kSlots; }},
      {"rows[1].ring_slot", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[1].ring_slot = -1; }},
  };
  if (p.family == Family::kMamba2) {
    faults.push_back({"skip", RSSM_NULL, [](Call& c) { c.args.skip = nullptr; }});
  }
  if (p.checkpoint == DType::kI8) {
    faults.push_back({"scale", RSSM_NULL, [](Call& c) { c.args.scale = nullptr; }});
    faults.push_back(
        {"scale_slot_stride", RSSM_OUT_OF_RANGE, [](Call& c) { --c.args.scale_slot_stride; }});
  }
  return faults;
}

// Faults of the activations, which a fold does not look at.
std::vector<Fault> activation_faults(const Problem& p) {
  std::vector<Fault> faults = {
      {"n_tokens", RSSM_OUT_OF_RANGE, [](Call& c) { c.args.n_tokens = -1; }},
      {"query", RSSM_NULL, [](Call& c) { c.args.query.data = nullptr; }},
      {"query.token_stride", RSSM_OUT_OF_RANGE, [](Call& c) { c.args.query.token_stride = 39; }},
      {"key", RSSM_NULL, [](Call& c) { c.args.key.data = nullptr; }},
      {"key.token_stride", RSSM_OUT_OF_RANGE, [](Call& c) { c.args.key.token_stride = -40; }},
      {"value", RSSM_NULL, [](Call& c) { c.args.value.data = nullptr; }},
      {"value.token_stride", RSSM_OUT_OF_RANGE,
       [](Call& c) { c.args.value.token_stride = kMax64; }},
      {"gate", RSSM_NULL, [](Call& c) { c.args.gate.data = nullptr; }},
      {"gate.token_stride", RSSM_OUT_OF_RANGE, [](Call& c) { c.args.gate.token_stride = 1; }},
      {"out", RSSM_NULL, [](Call& c) { c.args.out.data = nullptr; }},
      {"out", RSSM_MISALIGNED,
       [](Call& c) { c.args.out.data = static_cast<char*>(c.args.out.data) + 1; }},
      {"out.token_stride", RSSM_OUT_OF_RANGE, [](Call& c) { c.args.out.token_stride = 0; }},
      {"rows[0].token", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[0].token = -1; }},
      {"rows[1].token", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[1].token = 5; }},
      {"rows[1].token", RSSM_OUT_OF_RANGE, [](Call& c) { c.row[1].token = kMax64; }},
  };
  if (p.family != Family::kMamba2) {
    faults.push_back({"beta", RSSM_NULL, [](Call& c) { c.args.beta.data = nullptr; }});
    faults.push_back(
        {"beta.token_stride", RSSM_OUT_OF_RANGE, [](Call& c) { c.args.beta.token_stride = 1; }});
  }
  return faults;
}

const Problem kProblems[] = {problem_with(Family::kMamba2, DType::kI8),
                             problem_with(Family::kGdn, DType::kF16),
                             problem_with(Family::kKda, DType::kI8)};

void as_step(Call&) {}
void as_sweep(Call& c) { c.row[0].start = c.row[0].n; }
void as_fold(Call& c) { c.row[0].n_tokens = c.row[1].n_tokens = 0; }

TEST(CapiRefusals, StepSweepAndFold) {
  for (const Problem& p : kProblems) {
    SCOPED_TRACE(name_of(p));
    for (const Fault& fault : step_faults(p)) {
      expect_refused(p, rssm_step, fault, as_step);
      expect_refused(p, rssm_sweep, fault, as_sweep);
      expect_refused(p, rssm_fold, fault, as_fold);
    }
    for (const Fault& fault : activation_faults(p)) {
      expect_refused(p, rssm_step, fault, as_step);
      expect_refused(p, rssm_sweep, fault, as_sweep);
    }
    const Fault too_long = {"rows[0].n_tokens", RSSM_OUT_OF_RANGE,
                            [](Call& c) { c.row[0].n_tokens = 4; }};
    expect_refused(p, rssm_step, too_long, as_step);
    const Fault hint = {"hints", RSSM_OUT_OF_RANGE, [](Call& c) { c.args.hints = 4; }};
    expect_refused(p, rssm_step, hint, as_step);
    const Fault not_single = {"RSSM_HINT_SINGLE", RSSM_OUT_OF_RANGE,
                              [](Call& c) { c.args.hints = RSSM_HINT_SINGLE; }};
    expect_refused(p, rssm_step, not_single, as_step);
    const Fault pending = {"rows[0].start", RSSM_OUT_OF_RANGE, [](Call& c) { ++c.row[0].start; }};
    expect_refused(p, rssm_sweep, pending, as_sweep);
    const Fault tokens = {"rows[1].n_tokens", RSSM_OUT_OF_RANGE,
                          [](Call& c) { c.row[1].n_tokens = 1; }};
    expect_refused(p, rssm_fold, tokens, as_fold);

    // Unbroken, all three run; a fold asks for no activations, and no rows are no work.
    Call call(p);
    EXPECT_EQ(rssm_step(call.plan.get(), &call.args, nullptr), RSSM_OK) << rssm_last_error();
    call.row[0].n_tokens = call.row[1].n_tokens = 1;
    call.row[0].start = call.row[0].n;
    call.args.hints = RSSM_HINT_SINGLE | RSSM_HINT_EARLY;
    EXPECT_EQ(rssm_step(call.plan.get(), &call.args, nullptr), RSSM_OK) << rssm_last_error();
    as_sweep(call);
    EXPECT_EQ(rssm_sweep(call.plan.get(), &call.args, nullptr), RSSM_OK) << rssm_last_error();
    as_fold(call);
    call.args.query.data = call.args.key.data = call.args.value.data = nullptr;
    call.args.gate.data = call.args.beta.data = call.args.out.data = nullptr;
    EXPECT_EQ(rssm_fold(call.plan.get(), &call.args, nullptr), RSSM_OK) << rssm_last_error();
    rssm_step_args nothing = {};
    nothing.size = sizeof(nothing);
    nothing.row_bytes = sizeof(rssm_row);
    EXPECT_EQ(rssm_step(call.plan.get(), &nothing, nullptr), RSSM_OK);
    for (const Function run : {rssm_step, rssm_sweep, rssm_fold}) {
      EXPECT_EQ(run(nullptr, &call.args, nullptr), RSSM_NULL);
      EXPECT_EQ(run(call.plan.get(), nullptr, nullptr), RSSM_NULL);
    }
  }
}

// A skipped row's fields may be anything.
TEST(CapiRefusals, ASkippedRowIsNotLookedAt) {
  Call call(kProblems[1]);
  call.row[0] = {-5, 77, kMax64, -3, 0, kMax64, -1, -7, kMax32, 0};
  EXPECT_EQ(rssm_step(call.plan.get(), &call.args, nullptr), RSSM_OK) << rssm_last_error();
}

TEST(CapiRefusals, Plans) {
  rssm_plan* plan = nullptr;
  const auto expect = [&](rssm_status status, const char* names, auto change) {
    rssm_problem p = to_c(kProblems[2], RSSM_CPU);
    change(p);
    plan = reinterpret_cast<rssm_plan*>(8);
    EXPECT_EQ(rssm_plan_create(&p, &plan), status);
    EXPECT_EQ(plan, nullptr);
    EXPECT_NE(std::string(rssm_last_error()).find(names), std::string::npos) << rssm_last_error();
  };
  expect(RSSM_BAD_SIZE, "problem.size", [](rssm_problem& p) { p.size = 3; });
  expect(RSSM_OUT_OF_RANGE, "backend", [](rssm_problem& p) { p.backend = 2; });
  expect(RSSM_OUT_OF_RANGE, "family", [](rssm_problem& p) { p.family = -1; });
  expect(RSSM_OUT_OF_RANGE, "activation", [](rssm_problem& p) { p.activation = 4; });
  expect(RSSM_OUT_OF_RANGE, "ring", [](rssm_problem& p) { p.ring = 9; });
  expect(RSSM_OUT_OF_RANGE, "checkpoint", [](rssm_problem& p) { p.checkpoint = -1; });
  expect(RSSM_OUT_OF_RANGE, "decay_gate", [](rssm_problem& p) { p.decay_gate = 2; });
  expect(RSSM_UNSUPPORTED, "ring_rows", [](rssm_problem& p) { p.ring_rows = 9; });
  expect(RSSM_UNSUPPORTED, "interval", [](rssm_problem& p) { p.interval = 0; });
  expect(RSSM_UNSUPPORTED, "n_heads", [](rssm_problem& p) { p.n_heads = kMax32; });
  expect(RSSM_UNSUPPORTED, "n_key_heads", [](rssm_problem& p) { p.n_key_heads = 0; });
  expect(RSSM_UNSUPPORTED, "1024", [](rssm_problem& p) { p.key_dim = kMax32; });
  EXPECT_EQ(rssm_plan_create(nullptr, &plan), RSSM_NULL);
  const rssm_problem p = to_c(kProblems[2], RSSM_CPU);
  EXPECT_EQ(rssm_plan_create(&p, nullptr), RSSM_NULL);
  rssm_plan_destroy(nullptr);
  rssm_conv_plan_destroy(nullptr);

  ASSERT_EQ(rssm_plan_create(&p, &plan), RSSM_OK);
  rssm_sizes sizes = {};
  EXPECT_EQ(rssm_plan_sizes(plan, &sizes), RSSM_BAD_SIZE);
  EXPECT_EQ(rssm_plan_sizes(plan, nullptr), RSSM_NULL);
  sizes.size = sizeof(sizes);
  EXPECT_EQ(rssm_plan_sizes(nullptr, &sizes), RSSM_NULL);
  EXPECT_EQ(rssm_plan_sizes(plan, &sizes), RSSM_OK);
  EXPECT_EQ(sizes.ring_gate_elements, 40);
  EXPECT_EQ(sizes.canonical_elements, 2 * 24 * 20);
  EXPECT_EQ(rssm_workspace_bytes(plan, 0), 0u);
  EXPECT_EQ(rssm_workspace_bytes(plan, -3), 0u);
  EXPECT_EQ(rssm_workspace_bytes(nullptr, 1), 0u);
  EXPECT_EQ(rssm_workspace_bytes(plan, 2), 2 * rssm_workspace_bytes(plan, 1));
  rssm_plan_destroy(plan);
}

// Without the CUDA backend, or without a device, the reason says so.
TEST(CapiRefusals, AMissingBackendIsAReason) {
  std::string reason;
  if (c_plan(problem_of(Family::kGdn, 4, 2, 128, 128, 16, 4), RSSM_CUDA, &reason) == nullptr) {
    EXPECT_NE(reason.find("CUDA"), std::string::npos) << reason;
  }
  std::string conv_reason;
  if (c_plan(ConvProblem{64, 4, 8, DType::kBF16}, RSSM_CUDA, &conv_reason) == nullptr) {
    EXPECT_NE(conv_reason.find("CUDA"), std::string::npos) << conv_reason;
  }
}

TEST(CapiRefusals, Slots) {
  Call call(kProblems[0]);  // int8
  std::vector<float> canonical(2 * 24 * 20);
  const rssm_plan* plan = call.plan.get();
  void* slot = call.args.checkpoint;
  float* scale = call.args.scale;
  EXPECT_EQ(rssm_export_checkpoint(nullptr, slot, scale, canonical.data(), nullptr), RSSM_NULL);
  EXPECT_EQ(rssm_export_checkpoint(plan, nullptr, scale, canonical.data(), nullptr), RSSM_NULL);
  EXPECT_EQ(rssm_export_checkpoint(plan, slot, nullptr, canonical.data(), nullptr), RSSM_NULL);
  EXPECT_EQ(rssm_export_checkpoint(plan, slot, scale, nullptr, nullptr), RSSM_NULL);
  EXPECT_EQ(rssm_import_checkpoint(nullptr, canonical.data(), slot, scale, nullptr), RSSM_NULL);
  EXPECT_EQ(rssm_import_checkpoint(plan, nullptr, slot, scale, nullptr), RSSM_NULL);
  EXPECT_EQ(rssm_import_checkpoint(plan, canonical.data(), nullptr, scale, nullptr), RSSM_NULL);
  EXPECT_EQ(rssm_import_checkpoint(plan, canonical.data(), slot, nullptr, nullptr), RSSM_NULL);
  const auto odd = reinterpret_cast<const float*>(reinterpret_cast<uintptr_t>(scale) + 1);
  EXPECT_EQ(rssm_export_checkpoint(plan, slot, odd, canonical.data(), nullptr), RSSM_MISALIGNED);
  EXPECT_EQ(rssm_export_checkpoint(plan, slot, scale, canonical.data(), nullptr), RSSM_OK);
}

TEST(CapiRefusals, Conv) {
  std::string reason;
  const CConvPlan plan = c_plan(ConvProblem{10, 4, 7, DType::kF32}, RSSM_CPU, &reason);
  ASSERT_NE(plan, nullptr) << reason;
  std::vector<float> in(8 * 10, 1), out(8 * 10), weight(4 * 10, 1), ring(2 * 7 * 10);
  const rssm_row row = {0, 0, 0, 8, 0, 0, 0, -1, 1, 0};
  struct {
    rssm_conv_args args;
    rssm_row row;
  } valid = {};
  valid.row = row;
  valid.args.size = sizeof(valid.args);
  valid.args.row_bytes = sizeof(rssm_row);
  valid.args.n_rows = 1;
  valid.args.n_ring_slots = 2;
  valid.args.n_tokens = 8;
  valid.args.in = {in.data(), 10};
  valid.args.out = {out.data(), 10};
  valid.args.weight = weight.data();
  valid.args.ring = {ring.data(), 70, 10};
  const auto run = [&](auto change) {
    auto broken = valid;
    broken.args.rows = &broken.row;
    change(broken.args, broken.row);
    return rssm_conv(plan.get(), &broken.args, nullptr);
  };
  const auto refused = [&](rssm_status status, const char* names, auto change) {
    EXPECT_EQ(run(change), status) << names;
    EXPECT_NE(std::string(rssm_last_error()).find(names), std::string::npos) << rssm_last_error();
    EXPECT_EQ(out, std::vector<float>(8 * 10)) << names;
  };
  refused(RSSM_BAD_SIZE, "args.size", [](auto& a, auto&) { a.size = 1; });
  refused(RSSM_BAD_SIZE, "row_bytes", [](auto& a, auto&) { a.row_bytes = 1; });
  refused(RSSM_OUT_OF_RANGE, "n_rows", [](auto& a, auto&) { a.n_rows = -1; });
  refused(RSSM_OUT_OF_RANGE, "n_ring_slots", [](auto& a, auto&) { a.n_ring_slots = 0; });
  refused(RSSM_OUT_OF_RANGE, "n_tokens", [](auto& a, auto&) { a.n_tokens = -1; });
  refused(RSSM_NULL, "rows", [](auto& a, auto&) { a.rows = nullptr; });
  refused(RSSM_NULL, "in", [](auto& a, auto&) { a.in.data = nullptr; });
  refused(RSSM_OUT_OF_RANGE, "in.token_stride", [](auto& a, auto&) { a.in.token_stride = 9; });
  refused(RSSM_NULL, "out", [](auto& a, auto&) { a.out.data = nullptr; });
  refused(RSSM_NULL, "weight", [](auto& a, auto&) { a.weight = nullptr; });
  refused(RSSM_MISALIGNED, "bias",
          [&](auto& a, auto&) { a.bias = reinterpret_cast<float*>(uintptr_t{2}); });
  refused(RSSM_NULL, "ring", [](auto& a, auto&) { a.ring.data = nullptr; });
  refused(RSSM_OUT_OF_RANGE, "ring.row_stride", [](auto& a, auto&) { a.ring.row_stride = 9; });
  refused(RSSM_OUT_OF_RANGE, "ring.slot_stride", [](auto& a, auto&) { a.ring.slot_stride = 69; });
  refused(RSSM_OUT_OF_RANGE, "rows[0].n ", [](auto&, auto& r) { r.n = -1; });
  refused(RSSM_OUT_OF_RANGE, "rows[0].start", [](auto&, auto& r) { r.start = -1; });
  refused(RSSM_OUT_OF_RANGE, "rows[0].n_tokens", [](auto&, auto& r) { r.n_tokens = -1; });
  refused(RSSM_OUT_OF_RANGE, "rows[0].token", [](auto&, auto& r) { r.token = 1; });
  refused(RSSM_OUT_OF_RANGE, "rows[0].read_slot", [](auto&, auto& r) { r.read_slot = -2; });
  refused(RSSM_OUT_OF_RANGE, "rows[0].ring_slot", [](auto&, auto& r) { r.ring_slot = 2; });
  EXPECT_EQ(rssm_conv(nullptr, &valid.args, nullptr), RSSM_NULL);
  EXPECT_EQ(rssm_conv(plan.get(), nullptr, nullptr), RSSM_NULL);
  EXPECT_EQ(run([](auto&, auto&) {}), RSSM_OK) << rssm_last_error();
  EXPECT_NE(out, std::vector<float>(8 * 10));

  rssm_conv_plan* none = nullptr;
  rssm_conv_problem problem = to_c(ConvProblem{10, 9, 12, DType::kF32}, RSSM_CPU);
  EXPECT_EQ(rssm_conv_plan_create(&problem, &none), RSSM_UNSUPPORTED);
  problem.size = 0;
  EXPECT_EQ(rssm_conv_plan_create(&problem, &none), RSSM_BAD_SIZE);
  EXPECT_EQ(rssm_conv_plan_create(nullptr, &none), RSSM_NULL);
  EXPECT_EQ(rssm_conv_plan_create(&problem, nullptr), RSSM_NULL);
}

TEST(CapiRefusals, EveryStatusHasAText) {
  for (int32_t status = RSSM_OK; status <= RSSM_DEVICE_ERROR; ++status) {
    EXPECT_STRNE(rssm_status_text(status), "unknown status") << status;
  }
  EXPECT_STREQ(rssm_status_text(-1), "unknown status");
  EXPECT_STREQ(rssm_status_text(RSSM_DEVICE_ERROR + 1), "unknown status");
  EXPECT_EQ(rssm_version(), RSSM_VERSION);
}

}  // namespace
}  // namespace replayssm::test
