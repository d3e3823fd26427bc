// The CPU plans behind the C interface.
#include "replay/capi/backend.h"

namespace replayssm::capi {
namespace {

class CpuLayer final : public Layer {
 public:
  explicit CpuLayer(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}

  const Memory& memory() const override { return kHostMemory; }
  const Problem& problem() const override { return plan_->problem(); }
  int64_t checkpoint_elements() const override { return plan_->checkpoint_elements(); }
  int64_t scale_elements() const override { return plan_->scale_elements(); }
  size_t workspace_bytes(int n_workers) const override { return plan_->workspace_bytes(n_workers); }

  rssm_status step(const StepArgs& args, const ParallelFor& parallel, int32_t,
                   void*) const override {
    plan_->step(args, parallel);
    return RSSM_OK;
  }
  rssm_status sweep(const StepArgs& args, const ParallelFor& parallel, void*) const override {
    plan_->sweep(args, parallel);
    return RSSM_OK;
  }
  rssm_status commit(const CommitArgs& args, void*) const override {
    for (int32_t i = 0; i < args.n_rows; ++i) {
      if (!commit_row(problem().grid, args, i)) ++*args.n_refused;
    }
    return RSSM_OK;
  }
  rssm_status export_checkpoint(const void* slot, const float* scale, float* canonical,
                                void*) const override {
    plan_->export_checkpoint(slot, scale, canonical);
    return RSSM_OK;
  }
  rssm_status import_checkpoint(const float* canonical, void* slot, float* scale,
                                void*) const override {
    plan_->import_checkpoint(canonical, slot, scale);
    return RSSM_OK;
  }

 private:
  std::shared_ptr<const Plan> plan_;
};

class CpuConv final : public Conv {
 public:
  explicit CpuConv(std::shared_ptr<const ConvPlan> plan) : plan_(std::move(plan)) {}

  const Memory& memory() const override { return kHostMemory; }
  const ConvProblem& problem() const override { return plan_->problem(); }
  rssm_status run(const ConvArgs& args, int64_t, const ParallelFor& parallel,
                  void*) const override {
    plan_->run(args, parallel);
    return RSSM_OK;
  }

 private:
  std::shared_ptr<const ConvPlan> plan_;
};

}  // namespace

PlanResult<Layer> layer_cpu(const Problem& problem) {
  auto planned = plan_cpu(problem, best_isa());
  if (planned.plan == nullptr) return {nullptr, planned.reason};
  return {std::make_shared<CpuLayer>(std::move(planned.plan)), ""};
}

PlanResult<Conv> conv_cpu(const ConvProblem& problem) {
  auto planned = plan_cpu(problem, best_isa());
  if (planned.plan == nullptr) return {nullptr, planned.reason};
  return {std::make_shared<CpuConv>(std::move(planned.plan)), ""};
}

}  // namespace replayssm::capi
