// What every CUDA op runs on.
//
// The faces of this folder mirror those of src/ops: same names, same parameter structs, the same
// meaning; every pointer is the device's, per-step arrays (tokens, positions, page tables)
// included. An op launches kernels on the context's stream; it neither allocates nor synchronises
// and may be captured in a graph. Sizes that a launch depends on (rows, columns) are arguments
// known at capture; what is ragged is in device arrays.
//
// kExact keeps the invariant of src/ops/context.h: a row's bits do not depend on the other rows or
// on their number. kFast keeps it for every op but linear(), which uses what is fastest for the
// number of rows. Bad shapes are a programmer's mistake (REPLAYSSM_CHECK); a failed launch is an
// Error that names the op.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

struct cublasLtContext;

namespace replayssm::ops::cuda {

enum class Mode : int32_t { kFast, kExact };

class LinearPlans;

class CudaContext {
 public:
  // Scratch of one op at a time; the caller's, so that it comes out of its budget.
  static constexpr int64_t kWorkspaceBytes = int64_t{96} << 20;

  // On the current device. workspace: kWorkspaceBytes, 256-byte aligned; it and the stream must
  // outlive the context. One thread at a time.
  CudaContext(cudaStream_t stream, void* workspace, Mode mode);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  cudaStream_t stream() const { return stream_; }
  void* workspace() const { return workspace_; }
  Mode mode() const { return mode_; }
  int device() const { return device_; }
  int n_sms() const { return n_sms_; }
  cublasLtContext* lt() const { return lt_; }
  LinearPlans& linear_plans() const { return *linear_plans_; }

 private:
  cudaStream_t stream_;
  void* workspace_;
  Mode mode_;
  int device_ = 0;
  int n_sms_ = 0;
  cublasLtContext* lt_ = nullptr;
  std::unique_ptr<LinearPlans> linear_plans_;
};

}  // namespace replayssm::ops::cuda
