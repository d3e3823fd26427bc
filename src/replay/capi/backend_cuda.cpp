// The CUDA plans behind the C interface.
#include <cuda_runtime_api.h>

#include <string>

#include "replay/capi/backend.h"
#include "replay/capi/error.h"
#include "replay/cuda/conv_cuda.h"
#include "replay/cuda/kernels_cuda.h"
#include "replay/cuda/sequence_cuda.h"

namespace replayssm::capi {
namespace {

// Status after a launch. As usual in CUDA, an error of an earlier launch of the caller shows here
// too.
rssm_status launched() {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return RSSM_OK;
  return fail(RSSM_DEVICE_ERROR, "CUDA: %s", cudaGetErrorString(error));
}

class CudaLayer final : public Layer {
 public:
  explicit CudaLayer(std::shared_ptr<const CudaPlan> plan) : plan_(std::move(plan)) {}

  const Memory& memory() const override { return kDeviceMemory; }
  const Problem& problem() const override { return plan_->problem(); }
  int64_t checkpoint_elements() const override { return plan_->checkpoint_elements(); }
  int64_t scale_elements() const override { return plan_->scale_elements(); }
  size_t workspace_bytes(int) const override { return 0; }

  rssm_status step(const StepArgs& args, const ParallelFor&, int32_t hints,
                   void* stream) const override {
    plan_->step(
        args, static_cast<cudaStream_t>(stream),
        {.early = (hints & RSSM_HINT_EARLY) != 0, .single = (hints & RSSM_HINT_SINGLE) != 0});
    return launched();
  }
  rssm_status sweep(const StepArgs& args, const ParallelFor&, void* stream) const override {
    plan_->sweep(args, static_cast<cudaStream_t>(stream));
    return launched();
  }
  rssm_status commit(const CommitArgs& args, void* stream) const override {
    commit_cuda(problem().grid, args, static_cast<cudaStream_t>(stream));
    return launched();
  }
  rssm_status export_checkpoint(const void* slot, const float* scale, float* canonical,
                                void* stream) const override {
    export_checkpoint_cuda(problem(), slot, scale, canonical, static_cast<cudaStream_t>(stream));
    return launched();
  }
  rssm_status import_checkpoint(const float* canonical, void* slot, float* scale,
                                void* stream) const override {
    import_checkpoint_cuda(problem(), canonical, slot, scale, static_cast<cudaStream_t>(stream));
    return launched();
  }

 private:
  std::shared_ptr<const CudaPlan> plan_;
};

class CudaConv final : public Conv {
 public:
  explicit CudaConv(std::shared_ptr<const CudaConvPlan> plan) : plan_(std::move(plan)) {}

  const Memory& memory() const override { return kDeviceMemory; }
  const ConvProblem& problem() const override { return plan_->problem(); }
  rssm_status run(const ConvArgs& args, int64_t n_tokens, const ParallelFor&,
                  void* stream) const override {
    plan_->run(args, n_tokens, static_cast<cudaStream_t>(stream));
    return launched();
  }

 private:
  std::shared_ptr<const CudaConvPlan> plan_;
};

// Why the current device cannot run the kernels; empty if it can.
std::string device_reason() {
  int device = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // it is reported here and must not show at a later launch
    return std::string("no CUDA device: ") + cudaGetErrorString(error);
  }
  if (major != 9) {
    return "the CUDA kernels are built for compute capability 9, not " + std::to_string(major);
  }
  return "";
}

}  // namespace

PlanResult<Layer> layer_cuda(const Problem& problem) {
  auto planned = plan_cuda(problem);
  if (planned.plan == nullptr) return {nullptr, planned.reason};
  const std::string reason = device_reason();
  if (!reason.empty()) return {nullptr, reason};
  return {std::make_shared<CudaLayer>(std::move(planned.plan)), ""};
}

PlanResult<Conv> conv_cuda(const ConvProblem& problem) {
  auto planned = plan_cuda(problem);
  if (planned.plan == nullptr) return {nullptr, planned.reason};
  const std::string reason = device_reason();
  if (!reason.empty()) return {nullptr, reason};
  return {std::make_shared<CudaConv>(std::move(planned.plan)), ""};
}

}  // namespace replayssm::capi
