// plan_cpu: checks a problem once and picks the kernels of an instruction set for it.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "replay/cpu/layout.h"
#include "replay/kernels.h"
#include "replay/problem_reason.h"

namespace replayssm {
namespace {

using cpu::Layout;
using cpu::PlainScratch;
using cpu::Scratch;
using cpu::StepKernels;

constexpr int kConvBlock = 256;  // channels of one unit of work
constexpr int kRunsPerWorker = 16;

const StepKernels& kernels_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return cpu::avx512::kStepKernels;
    case Isa::kAvx2:
      return cpu::avx2::kStepKernels;
    case Isa::kPortable:
      break;
  }
  return cpu::portable::kStepKernels;
}

template <typename Body>
void parallel_for(const ParallelFor& parallel, int64_t count, const Body& body) {
  parallel.run(
      parallel.ctx, count,
      [](const void* arg, int64_t index, int worker) {
        (*static_cast<const Body*>(arg))(index, worker);
      },
      &body);
}

class CpuPlan final : public Plan {
 public:
  CpuPlan(const Problem& problem, Isa isa)
      : Plan(problem), layout_(problem), kernels_(kernels_of(isa)) {
    scratch_bytes_ = Scratch{}.place(problem_, layout_, nullptr);
  }

  int64_t checkpoint_elements() const override { return problem_.n_heads * layout_.head_elements; }
  int64_t scale_elements() const override {
    return problem_.checkpoint == DType::kI8 ? int64_t{problem_.n_heads} * layout_.value_padded : 0;
  }
  size_t workspace_bytes(int n_workers) const override {
    return scratch_bytes_ * static_cast<size_t>(n_workers);
  }

  void step(const StepArgs& args, const ParallelFor& parallel) const override {
    run(args, parallel, /*sweep=*/false);
  }
  void sweep(const StepArgs& args, const ParallelFor& parallel) const override {
    run(args, parallel, /*sweep=*/true);
  }

  void export_checkpoint(const void* slot, const float* scale, float* canonical) const override {
    for (int head = 0; head < problem_.n_heads; ++head) {
      kernels_.export_head(problem_, head_state(slot, head), head_scale(scale, head),
                           canonical + int64_t{head} * problem_.value_dim * problem_.key_dim);
    }
  }
  void import_checkpoint(const float* canonical, void* slot, float* scale) const override {
    const auto scratch = std::make_unique<char[]>(scratch_bytes_ + 64);
    char* aligned = scratch.get() + (64 - reinterpret_cast<uintptr_t>(scratch.get()) % 64) % 64;
    for (int head = 0; head < problem_.n_heads; ++head) {
      kernels_.import_head(problem_, layout_,
                           canonical + int64_t{head} * problem_.value_dim * problem_.key_dim,
                           const_cast<char*>(head_state(slot, head)),
                           const_cast<float*>(head_scale(scale, head)), aligned);
    }
  }

 private:
  const char* head_state(const void* slot, int head) const {
    return static_cast<const char*>(slot) +
           head * layout_.head_elements * dtype_bytes(problem_.checkpoint);
  }
  const float* head_scale(const float* scale, int head) const {
    return scale_elements() == 0 ? nullptr : scale + int64_t{head} * layout_.value_padded;
  }

  // The head after a unit of a row.
  int unit_end(int64_t unit) const {
    const int key_head = static_cast<int>(unit / layout_.units_per_key);
    const int part = static_cast<int>(unit % layout_.units_per_key);
    return key_head * layout_.heads_per_key +
           std::min((part + 1) * layout_.unit_heads, layout_.heads_per_key);
  }

  // Ring keys are shared by the heads of a key head. A sweep may come round the ring, and writes
  // them when every unit has read.
  void run(const StepArgs& args, const ParallelFor& parallel, bool sweep) const {
    const int64_t units_per_row = int64_t{problem_.n_key_heads} * layout_.units_per_key;
    // A worker computes several units of a row in a run, so that it knows what it will read next.
    const int64_t fair_run = args.n_rows * units_per_row / (kRunsPerWorker * parallel.n_workers);
    const int64_t run_units = std::clamp<int64_t>(fair_run, 1, units_per_row);
    const int64_t runs_per_row = (units_per_row + run_units - 1) / run_units;
    char* workspace = static_cast<char*>(args.workspace);
    std::atomic<int64_t> n_saturated{0};
    parallel_for(parallel, args.n_rows * runs_per_row, [&](int64_t index, int worker) {
      const Row& row = args.rows[index / runs_per_row];
      if (row.read_slot < 0) return;
      const int64_t begin = index % runs_per_row * run_units;
      const int64_t end = std::min(begin + run_units, units_per_row);
      char* scratch = workspace + static_cast<size_t>(worker) * scratch_bytes_;
      int64_t saturated = 0;
      for (int64_t unit = begin; unit < end; ++unit) {
        const int head_end = unit_end(unit);
        kernels_.unit(problem_, layout_, args, row, unit == 0 ? 0 : unit_end(unit - 1), head_end,
                      unit + 1 < end ? unit_end(unit + 1) : head_end, sweep, scratch, &saturated);
      }
      if (saturated != 0) n_saturated.fetch_add(saturated, std::memory_order_relaxed);
    });
    if (sweep) {
      parallel_for(parallel, args.n_rows * problem_.n_key_heads, [&](int64_t index, int worker) {
        const Row& row = args.rows[index / problem_.n_key_heads];
        if (row.read_slot < 0) return;
        kernels_.write_sweep_keys(problem_, layout_, args, row,
                                  static_cast<int>(index % problem_.n_key_heads),
                                  workspace + static_cast<size_t>(worker) * scratch_bytes_);
      });
    }
    if (args.n_saturated != nullptr) *args.n_saturated += n_saturated.load();
  }

  Layout layout_;
  const StepKernels& kernels_;
  size_t scratch_bytes_ = 0;
};

class CpuPlainPlan final : public PlainPlan {
 public:
  CpuPlainPlan(const Problem& problem, Isa isa)
      : PlainPlan(problem), layout_(problem), kernels_(kernels_of(isa)) {
    PlainScratch scratch;
    alignas(64) static char origin[64];
    scratch_bytes_ = static_cast<size_t>(
        cpu::round_up(static_cast<int64_t>(scratch.place(problem_, layout_, origin)), 64));
  }

  int64_t checkpoint_elements() const override { return problem_.n_heads * layout_.head_elements; }
  size_t workspace_bytes(int n_workers) const override {
    return scratch_bytes_ * static_cast<size_t>(n_workers);
  }
  void run(const PlainArgs& args, const ParallelFor& parallel) const override {
    parallel_for(parallel, int64_t{args.base.n_rows} * problem_.n_heads,
                 [&](int64_t index, int worker) {
                   const int64_t r = index / problem_.n_heads;
                   const Row& row = args.base.rows[r];
                   if (row.read_slot < 0) return;
                   kernels_.plain(problem_, layout_, args, row,
                                  args.write_slots + r * args.write_slots_stride,
                                  static_cast<int>(index % problem_.n_heads),
                                  static_cast<char*>(args.base.workspace) +
                                      static_cast<size_t>(worker) * scratch_bytes_);
                 });
  }

 private:
  Layout layout_;
  const StepKernels& kernels_;
  size_t scratch_bytes_ = 0;
};

class CpuConvPlan final : public ConvPlan {
 public:
  CpuConvPlan(const ConvProblem& problem, Isa isa) : ConvPlan(problem), kernels_(kernels_of(isa)) {}

  void run(const ConvArgs& args, const ParallelFor& parallel) const override {
    const int64_t blocks = (problem_.n_channels + kConvBlock - 1) / kConvBlock;
    parallel_for(parallel, args.n_rows * blocks, [&](int64_t index, int) {
      const Row& row = args.rows[index / blocks];
      if (row.read_slot < 0) return;
      const int begin = static_cast<int>(index % blocks) * kConvBlock;
      const int end =
          begin + kConvBlock < problem_.n_channels ? begin + kConvBlock : problem_.n_channels;
      kernels_.conv(problem_, args, row, begin, end);
    });
  }

 private:
  const StepKernels& kernels_;
};

std::string isa_reason(Isa isa) {
  return isa_supported(isa) ? "" : std::string("this machine has no ") + isa_name(isa);
}

template <typename PlanType, typename Implementation, typename ProblemType>
PlanResult<PlanType> make_plan(const ProblemType& problem, Isa isa) {
  std::string reason = isa_reason(isa);
  if (reason.empty()) reason = problem_reason(problem);
  if (!reason.empty()) return {nullptr, reason};
  return {std::make_shared<Implementation>(problem, isa), ""};
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "AVX2";
    case Isa::kAvx512:
      return "AVX-512";
  }
  return "?";
}

bool isa_supported(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("x86-64-v3");
    case Isa::kAvx512:
      return __builtin_cpu_supports("x86-64-v4");
  }
  return false;
}

Isa best_isa() {
  if (isa_supported(Isa::kAvx512)) return Isa::kAvx512;
  return isa_supported(Isa::kAvx2) ? Isa::kAvx2 : Isa::kPortable;
}

PlanResult<Plan> plan_cpu(const Problem& problem, Isa isa) {
  return make_plan<Plan, CpuPlan>(problem, isa);
}

PlanResult<PlainPlan> plan_plain_cpu(const Problem& problem, Isa isa) {
  if (problem.checkpoint == DType::kI8) return {nullptr, "the plain state has no int8"};
  return make_plan<PlainPlan, CpuPlainPlan>(problem, isa);
}

PlanResult<ConvPlan> plan_cpu(const ConvProblem& problem, Isa isa) {
  return make_plan<ConvPlan, CpuConvPlan>(problem, isa);
}

}  // namespace replayssm
