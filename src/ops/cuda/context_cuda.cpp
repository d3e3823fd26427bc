#include "ops/cuda/context_cuda.h"

#include <cublasLt.h>

#include "core/error.h"
#include "ops/cuda/linear_plans_cuda.h"

namespace replayssm::ops::cuda {

CudaContext::CudaContext(cudaStream_t stream, void* workspace, Mode mode)
    : stream_(stream), workspace_(workspace), mode_(mode) {
  REPLAYSSM_CHECK(workspace != nullptr && reinterpret_cast<uintptr_t>(workspace) % 256 == 0,
                  "workspace");
  cudaError_t error = cudaGetDevice(&device_);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&n_sms_, cudaDevAttrMultiProcessorCount, device_);
  }
  if (error != cudaSuccess) fail("CUDA: ", cudaGetErrorString(error));
  const cublasStatus_t status = cublasLtCreate(&lt_);
  if (status != CUBLAS_STATUS_SUCCESS) fail("cuBLASLt: ", cublasLtGetStatusString(status));
  linear_plans_ = std::make_unique<LinearPlans>();
}

CudaContext::~CudaContext() {
  linear_plans_.reset();
  cublasLtDestroy(lt_);
}

}  // namespace replayssm::ops::cuda
