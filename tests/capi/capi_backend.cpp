#include "capi_backend.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "capi_args.h"

namespace replayssm::test {
namespace {

rssm_parallel_for parallel_of(ThreadPool& pool) {
  rssm_parallel_for out = {};
  out.size = sizeof(out);
  out.run = [](void* ctx, int64_t count, void (*function)(const void*, int64_t, int),
               const void* arg) { static_cast<ThreadPool*>(ctx)->run(count, function, arg); };
  out.ctx = &pool;
  out.n_workers = pool.size();
  return out;
}

class CapiPlan final : public BackendPlan {
 public:
  explicit CapiPlan(CPlan plan) : plan_(std::move(plan)), sizes_(sizes_of(plan_)) {}
  int64_t checkpoint_elements() const override { return sizes_.checkpoint_elements; }
  int64_t scale_elements() const override { return sizes_.scale_elements; }

  // The caller's threads where there are several, else the library's own loop; a fold where no row
  // has tokens.
  void run(StepArgs from, const Extents& extents, bool sweep, ThreadPool& pool) const override {
    const rssm_parallel_for parallel = parallel_of(pool);
    std::vector<char> workspace(rssm_workspace_bytes(plan_.get(), pool.size()) + 64);
    const size_t shift = (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
    rssm_step_args args = to_c(from, extents);
    args.workspace = workspace.data() + shift;
    args.workspace_bytes = workspace.size() - 64;
    if (pool.size() > 1) args.parallel = &parallel;
    const bool fold = std::all_of(from.rows, from.rows + from.n_rows,
                                  [](const Row& r) { return r.n_tokens == 0; });
    const auto call = sweep ? rssm_sweep : fold ? rssm_fold : rssm_step;
    EXPECT_EQ(call(plan_.get(), &args, nullptr), RSSM_OK) << rssm_last_error();
  }
  void export_checkpoint(const void* slot, const float* scale, float* canonical) const override {
    EXPECT_EQ(rssm_export_checkpoint(plan_.get(), slot, scale, canonical, nullptr), RSSM_OK);
  }
  void import_checkpoint(const float* canonical, void* slot, float* scale) const override {
    EXPECT_EQ(rssm_import_checkpoint(plan_.get(), canonical, slot, scale, nullptr), RSSM_OK);
  }

 private:
  CPlan plan_;
  rssm_sizes sizes_;
};

class CapiConv final : public BackendConv {
 public:
  explicit CapiConv(CConvPlan plan) : plan_(std::move(plan)) {}
  void run(const ConvArgs& from, const Extents& extents, ThreadPool& pool) const override {
    const rssm_parallel_for parallel = parallel_of(pool);
    rssm_conv_args args = to_c(from, extents);
    if (pool.size() > 1) args.parallel = &parallel;
    EXPECT_EQ(rssm_conv(plan_.get(), &args, nullptr), RSSM_OK) << rssm_last_error();
  }

 private:
  CConvPlan plan_;
};

class CapiBackend final : public Backend {
 public:
  std::string name() const override { return "capi"; }
  PlanResult<BackendPlan> plan(const Problem& problem) const override {
    std::string reason;
    CPlan plan = c_plan(problem, RSSM_CPU, &reason);
    if (plan == nullptr) return {nullptr, reason};
    return {std::make_shared<CapiPlan>(std::move(plan)), ""};
  }
  PlanResult<BackendConv> plan(const ConvProblem& problem) const override {
    std::string reason;
    CConvPlan plan = c_plan(problem, RSSM_CPU, &reason);
    if (plan == nullptr) return {nullptr, reason};
    return {std::make_shared<CapiConv>(std::move(plan)), ""};
  }
};

}  // namespace

const Backend& capi_backend() {
  static const CapiBackend backend;
  return backend;
}

}  // namespace replayssm::test
