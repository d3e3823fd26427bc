#include "backend_cpu.h"

#include <cstdint>
#include <vector>

#include "ops/parallel.h"

namespace replayssm::test {
namespace {

class CpuPlan final : public BackendPlan {
 public:
  explicit CpuPlan(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}
  int64_t checkpoint_elements() const override { return plan_->checkpoint_elements(); }
  int64_t scale_elements() const override { return plan_->scale_elements(); }
  void run(StepArgs args, const Extents&, bool sweep, ThreadPool& pool) const override {
    std::vector<char> workspace(plan_->workspace_bytes(pool.size()) + 64);
    args.workspace =
        workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
    if (sweep) {
      plan_->sweep(args, parallel_of(pool));
    } else {
      plan_->step(args, parallel_of(pool));
    }
  }
  void export_checkpoint(const void* slot, const float* scale, float* canonical) const override {
    plan_->export_checkpoint(slot, scale, canonical);
  }
  void import_checkpoint(const float* canonical, void* slot, float* scale) const override {
    plan_->import_checkpoint(canonical, slot, scale);
  }

 private:
  std::shared_ptr<const Plan> plan_;
};

class CpuConv final : public BackendConv {
 public:
  explicit CpuConv(std::shared_ptr<const ConvPlan> plan) : plan_(std::move(plan)) {}
  void run(const ConvArgs& args, const Extents&, ThreadPool& pool) const override {
    plan_->run(args, parallel_of(pool));
  }

 private:
  std::shared_ptr<const ConvPlan> plan_;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(Isa isa) : isa_(isa) {}
  std::string name() const override {
    return isa_ == Isa::kAvx512 ? "avx512" : isa_ == Isa::kAvx2 ? "avx2" : "portable";
  }
  PlanResult<BackendPlan> plan(const Problem& problem) const override {
    auto planned = plan_cpu(problem, isa_);
    if (planned.plan == nullptr) return {nullptr, planned.reason};
    return {std::make_shared<CpuPlan>(planned.plan), ""};
  }
  PlanResult<BackendConv> plan(const ConvProblem& problem) const override {
    auto planned = plan_cpu(problem, isa_);
    if (planned.plan == nullptr) return {nullptr, planned.reason};
    return {std::make_shared<CpuConv>(planned.plan), ""};
  }

 private:
  Isa isa_;
};

}  // namespace

const Backend& cpu_backend(Isa isa) {
  static const CpuBackend portable(Isa::kPortable), avx2(Isa::kAvx2), avx512(Isa::kAvx512);
  return isa == Isa::kAvx512 ? avx512 : isa == Isa::kAvx2 ? avx2 : portable;
}

}  // namespace replayssm::test
