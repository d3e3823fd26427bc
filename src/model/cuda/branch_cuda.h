// A second stream beside a pass's, for work that does not fill the card.
#pragma once

#include <cuda_runtime_api.h>

#include "core/cuda/device.h"
#include "ops/cuda/context_cuda.h"

namespace replayssm {

class BranchCuda {
 public:
  // workspace: CudaContext::kWorkspaceBytes, the branch's own. The main context must outlive it.
  BranchCuda(const ops::cuda::CudaContext& main, void* workspace);
  ~BranchCuda();
  BranchCuda(const BranchCuda&) = delete;
  BranchCuda& operator=(const BranchCuda&) = delete;

  const ops::cuda::CudaContext& context() const { return context_; }
  // What the branch gets from now on waits for what the main stream has had so far.
  void fork();
  // What the main stream gets from now on waits for what the branch has had so far.
  void join();

 private:
  cudaStream_t main_;
  Stream stream_;
  ops::cuda::CudaContext context_;
  cudaEvent_t forked_ = nullptr, joined_ = nullptr;
};

}  // namespace replayssm
