// The cuBLASLt algorithms that linear() has chosen, by shape.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "ops/cuda/context_cuda.h"
#include "ops/cuda/linear_cuda.h"

namespace replayssm::ops::cuda {

// What an algorithm is chosen for. rows is 0 in kExact, where one serves them all.
struct LinearKey {
  int64_t n_out, n_in, rows;
  WeightType type;
  DType y;
  bool accumulate;
  auto fields() const { return std::tie(n_out, n_in, rows, type, y, accumulate); }
  bool operator<(const LinearKey& other) const { return fields() < other.fields(); }
};

// y [rows, n_out] = weight x as cuBLASLt has it: column-major, weight transposed.
class Product {
 public:
  Product(const LinearCuda& weight, int64_t rows, DType x, int64_t x_stride, DType y,
          int64_t y_stride);
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  std::vector<cublasLtMatmulHeuristicResult_t> heuristics(cublasLtContext* lt,
                                                          int64_t workspace_bytes, int n) const;
  bool fits(cublasLtContext* lt, const cublasLtMatmulAlgo_t& algo, int64_t workspace_bytes) const;
  cublasStatus_t run(const CudaContext& context, const cublasLtMatmulAlgo_t& algo,
                     const void* weight, const void* x, void* y, bool accumulate) const;

 private:
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr;
  cublasLtMatrixLayout_t x_ = nullptr;
  cublasLtMatrixLayout_t y_ = nullptr;
};

class LinearPlans {
 public:
  // Of the workspace, what cuBLASLt may use; the rest holds what a timing must not lose.
  static constexpr int64_t kProductBytes = int64_t{32} << 20;

  // Chosen by timing at the first call, which then waits for the stream.
  const cublasLtMatmulAlgo_t& algorithm(const CudaContext& context, const LinearCuda& weight,
                                        ConstMatrix x, Matrix y, bool accumulate);

 private:
  std::map<LinearKey, cublasLtMatmulAlgo_t> chosen_;
};

}  // namespace replayssm::ops::cuda
