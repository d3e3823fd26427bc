// plan_cuda: finds a problem's kernels in the instance tables.
#include <string>
#include <utility>

#include "replay/cuda/general_cuda.h"
#include "replay/cuda/step_instances.h"
#include "replay/problem_reason.h"

namespace replayssm {
namespace cuda {

int multiprocessors() {
  int device = 0, n = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
  return n;
}

std::vector<const StepInstance*> all_instances() {
  std::vector<const StepInstance*> all;
  for (auto table : {gdn_instances, mamba2_instances, mamba2_more_instances, kda_instances,
                     interval32_instances}) {
    for (const StepInstance& x : table()) all.push_back(&x);
  }
  return all;
}

ProblemKernels kernels_of(const Problem& p) {
  ProblemKernels found;
  for (const StepInstance* x : all_instances()) {
    const bool fits = x->family == p.family && x->interval == p.grid.interval &&
                      x->checkpoint == p.checkpoint && x->value_dim == p.value_dim &&
                      x->key_dim == p.key_dim &&
                      p.n_heads / p.n_key_heads * p.value_dim % x->rows == 0;
    StepKernels& kind = x->single ? found.single : found.any;
    const StepInstance*& place = x->small_grid ? kind.small_grid : kind.standard;
    if (fits && place == nullptr) place = x;
  }
  if (found.single.standard == nullptr) found.single = found.any;
  return found;
}

}  // namespace cuda

namespace {

// The persistent kernel is faster from so many blocks per SM on.
constexpr int64_t kPersistentBlocks = 12;

std::string shape_name(int value_dim, int key_dim, DType checkpoint, int interval) {
  return " " + std::to_string(value_dim) + "x" + std::to_string(key_dim) + " " +
         dtype_name(checkpoint) + " B" + std::to_string(interval);
}

// Common to every plan.
class PlanBase : public CudaPlan {
 public:
  using CudaPlan::CudaPlan;
  int64_t checkpoint_elements() const override {
    return int64_t{problem_.n_heads} * problem_.value_dim * problem_.key_dim;
  }
  int64_t scale_elements() const override {
    return problem_.checkpoint == DType::kI8 ? int64_t{problem_.n_heads} * problem_.value_dim : 0;
  }
};

class StepPlan final : public PlanBase {
 public:
  StepPlan(const Problem& problem, const cuda::ProblemKernels& kernels)
      : PlanBase(problem), kernels_(kernels) {}

  void step(const StepArgs& args, cudaStream_t stream, StepHints hints) const override {
    if (args.n_rows == 0) return;
    const bool single = hints.single || problem_.max_window == 1;
    const cuda::StepKernels& kernels = single ? kernels_.single : kernels_.any;
    const int64_t blocks =
        int64_t{args.n_rows} * problem_.n_heads * problem_.value_dim / kernels.standard->rows;
    const int multiprocessors = cuda::multiprocessors();
    if (kernels.standard->persistent != nullptr && blocks >= kPersistentBlocks * multiprocessors &&
        blocks <= INT32_MAX) {
      kernels.standard->persistent(args, problem_, stream);
      return;
    }
    const bool small_grid = kernels.small_grid != nullptr && blocks <= multiprocessors;
    (small_grid ? kernels.small_grid : kernels.standard)->step(args, problem_, hints.early, stream);
  }
  void sweep(const StepArgs& args, cudaStream_t stream) const override {
    if (args.n_rows > 0) kernels_.any.standard->sweep(args, problem_, stream);
  }

 private:
  cuda::ProblemKernels kernels_;
};

class GeneralPlan final : public PlanBase {
 public:
  explicit GeneralPlan(const Problem& problem) : PlanBase(problem) {}

  void step(const StepArgs& args, cudaStream_t stream, StepHints) const override {
    cuda::launch_general(args, problem_, false, stream);
  }
  void sweep(const StepArgs& args, cudaStream_t stream) const override {
    cuda::launch_general(args, problem_, true, stream);
  }
};

}  // namespace

PlanResult<CudaPlan> plan_cuda(const Problem& p) {
  std::string reason = problem_reason(p);
  if (!reason.empty()) return {nullptr, std::move(reason)};
  if (p.activation == DType::kF32) {
    reason = cuda::general_reason(p);
    if (!reason.empty()) return {nullptr, std::move(reason)};
    return {std::make_shared<GeneralPlan>(p), ""};
  }
  const DType ring = p.family == Family::kMamba2 ? DType::kBF16 : DType::kF16;
  if (p.ring != ring) {
    return {nullptr,
            std::string("the CUDA ring of ") + family_name(p.family) + " is " + dtype_name(ring)};
  }
  const cuda::ProblemKernels kernels = cuda::kernels_of(p);
  if (kernels.any.standard == nullptr) {
    std::string have;
    for (const cuda::StepInstance* x : cuda::all_instances()) {
      if (x->family == p.family && !x->single && !x->small_grid) {
        have += shape_name(x->value_dim, x->key_dim, x->checkpoint, x->interval);
      }
    }
    return {nullptr, std::string("no ") + family_name(p.family) + " kernel for" +
                         shape_name(p.value_dim, p.key_dim, p.checkpoint, p.grid.interval) + ", " +
                         std::to_string(p.n_heads / p.n_key_heads) + " heads per key head; have" +
                         have};
  }
  return {std::make_shared<StepPlan>(p, kernels), ""};
}

}  // namespace replayssm
