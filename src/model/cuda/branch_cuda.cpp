#include "model/cuda/branch_cuda.h"

namespace replayssm {
namespace {

void follow(cudaStream_t before, cudaEvent_t event, cudaStream_t after) {
  check_cuda(cudaEventRecord(event, before), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(after, event), "cudaStreamWaitEvent");
}

}  // namespace

BranchCuda::BranchCuda(const ops::cuda::CudaContext& main, void* workspace)
    : main_(main.stream()), context_(stream_.get(), workspace, main.mode()) {
  check_cuda(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming), "cudaEventCreate");
  check_cuda(cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming), "cudaEventCreate");
}

BranchCuda::~BranchCuda() {
  cudaEventDestroy(forked_);
  cudaEventDestroy(joined_);
}

void BranchCuda::fork() { follow(main_, forked_, stream_.get()); }
void BranchCuda::join() { follow(stream_.get(), joined_, main_); }

}  // namespace replayssm
