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

// x in the form that a product needs: bf16, or E4M3 with scales.
struct ProductInput {
  const void* data;
  const float* scales;  // FP8 only
  int64_t rows;
  int64_t stride;
};

// y [rows, n_out] = weight x as cuBLASLt has it: column-major, weight transposed.
class Product {
 public:
  Product(const LinearCuda& weight, const ProductInput& x, DType y, int64_t y_stride);
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  // Up to n algorithms, the best first; whole_sums: that split no sum over blocks.
  std::vector<cublasLtMatmulHeuristicResult_t> heuristics(cublasLtContext* lt, bool whole_sums,
                                                          int n) const;
  bool takes(cublasLtContext* lt, const cublasLtMatmulAlgo_t& algo) const;
  cublasStatus_t run(const CudaContext& context, const cublasLtMatmulAlgo_t& algo, void* y,
                     bool accumulate) const;

 private:
  const void* weight_data_;
  const void* x_data_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr;
  cublasLtMatrixLayout_t x_ = nullptr;
  cublasLtMatrixLayout_t y_ = nullptr;
};

class LinearPlans {
 public:
  // The workspace: what cuBLASLt may use; x in FP8; four rows of y; what a timing must not lose.
  static constexpr int64_t kProductBytes = int64_t{32} << 20;
  static constexpr int64_t kQuantisedBytes = int64_t{28} << 20;
  static constexpr int64_t kRestBytes = int64_t{4} << 20;

  // Chosen by timing at the first call, which then waits for the stream.
  const cublasLtMatmulAlgo_t& algorithm(const CudaContext& context, const LinearCuda& weight,
                                        const ProductInput& x, Matrix y, bool accumulate);

 private:
  std::map<LinearKey, cublasLtMatmulAlgo_t> chosen_;
};

}  // namespace replayssm::ops::cuda
