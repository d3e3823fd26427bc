#include "ops/cuda/linear_cuda.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "ops/cuda/linear_kernels_cuda.h"
#include "ops/cuda/linear_plans_cuda.h"

namespace replayssm::ops::cuda {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(what, ": ", cublasLtGetStatusString(status));
}
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(what, ": ", cudaGetErrorString(error));
}

cudaDataType_t type_of(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

cublasLtMatrixLayout_t layout(cudaDataType_t type, int64_t rows, int64_t cols, int64_t stride) {
  cublasLtMatrixLayout_t out = nullptr;
  check(cublasLtMatrixLayoutCreate(&out, type, static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(cols), stride),
        "cublasLtMatrixLayoutCreate");
  return out;
}

// Sums that are split over blocks depend on how many there are.
bool splits_sums(const cublasLtMatmulAlgo_t& algo) {
  int32_t split = 0;
  uint32_t reduction = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                       sizeof(split), nullptr);
  cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                       sizeof(reduction), nullptr);
  return split > 1 || reduction != CUBLASLT_REDUCTION_SCHEME_NONE;
}

// Row counts that a kExact algorithm must take, and the one that it is timed at.
constexpr int64_t kExactRows[] = {1, 2, 3, 7, 16, 33, 64, 100, 256, 257, 1000, 1024};
constexpr int64_t kExactTimedRows = 256;

class Events {
 public:
  Events() {
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Events() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  template <typename Body>
  float time(cudaStream_t stream, const Body& body) {
    check(cudaEventRecord(begin_, stream), "cudaEventRecord");
    body();
    check(cudaEventRecord(end_, stream), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "linear");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return ms;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

Product::Product(const LinearCuda& weight, int64_t rows, DType x, int64_t x_stride, DType y,
                 int64_t y_stride) {
  check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                       sizeof(transposed)),
        "cublasLtMatmulDescSetAttribute");
  weight_ = layout(CUDA_R_16BF, weight.n_in, weight.n_out, weight.n_in);
  x_ = layout(type_of(x), weight.n_in, rows, x_stride);
  y_ = layout(type_of(y), weight.n_out, rows, y_stride);
}

Product::~Product() {
  cublasLtMatrixLayoutDestroy(y_);
  cublasLtMatrixLayoutDestroy(x_);
  cublasLtMatrixLayoutDestroy(weight_);
  cublasLtMatmulDescDestroy(operation_);
}

std::vector<cublasLtMatmulHeuristicResult_t> Product::heuristics(cublasLtContext* lt,
                                                                 int64_t workspace_bytes,
                                                                 int n) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const auto bytes = static_cast<uint64_t>(workspace_bytes);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                       sizeof(bytes));
  const uint32_t alignment = 16;
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof(alignment));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(n));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      lt, operation_, weight_, x_, y_, y_, preference, n, results.data(), &found);
  cublasLtMatmulPreferenceDestroy(preference);
  results.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
  return results;
}

bool Product::fits(cublasLtContext* lt, const cublasLtMatmulAlgo_t& algo,
                   int64_t workspace_bytes) const {
  cublasLtMatmulHeuristicResult_t result;
  return cublasLtMatmulAlgoCheck(lt, operation_, weight_, x_, y_, y_, &algo, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         static_cast<int64_t>(result.workspaceSize) <= workspace_bytes;
}

cublasStatus_t Product::run(const CudaContext& context, const cublasLtMatmulAlgo_t& algo,
                            const void* weight, const void* x, void* y, bool accumulate) const {
  const float one = 1.0f, beta = accumulate ? 1.0f : 0.0f;
  return cublasLtMatmul(context.lt(), operation_, &one, weight, weight_, x, x_, &beta, y, y_, y, y_,
                        &algo, context.workspace(), LinearPlans::kProductBytes, context.stream());
}

namespace {

// Chooses among candidates by the median of a few runs, each with cold caches. What y held when it
// is accumulated to is put back.
cublasLtMatmulAlgo_t fastest(const CudaContext& context, const Product& product,
                             const std::vector<cublasLtMatmulAlgo_t>& candidates,
                             const LinearCuda& weight, ConstMatrix x, Matrix y, bool accumulate) {
  constexpr int kRuns = 5;
  constexpr int64_t kRest = CudaContext::kWorkspaceBytes - LinearPlans::kProductBytes;
  char* const rest = static_cast<char*>(context.workspace()) + LinearPlans::kProductBytes;
  const auto row_bytes = static_cast<size_t>(y.cols * dtype_bytes(y.dtype));
  const auto stride_bytes = static_cast<size_t>(y.stride * dtype_bytes(y.dtype));
  const bool kept = static_cast<int64_t>(row_bytes) * y.rows <= kRest;
  if (candidates.size() == 1 || (accumulate && !kept)) return candidates.front();
  const auto rows = static_cast<size_t>(y.rows);
  cudaStream_t stream = context.stream();
  if (accumulate) {
    check(cudaMemcpy2DAsync(rest, row_bytes, y.data, stride_bytes, row_bytes, rows,
                            cudaMemcpyDeviceToDevice, stream),
          "linear");
  }
  // Pushes weights and activations out of the caches; all of the rest if there is nothing to keep.
  const int64_t cold_from =
      accumulate ? (static_cast<int64_t>(row_bytes) * y.rows + 255) / 256 * 256 : 0;
  Events events;
  float best = 0;
  const cublasLtMatmulAlgo_t* choice = nullptr;
  for (const auto& algo : candidates) {
    std::array<float, kRuns> times;
    bool good = true;
    for (float& t : times) {
      check(cudaMemsetAsync(rest + cold_from, 0, static_cast<size_t>(kRest - cold_from), stream),
            "linear");
      t = events.time(stream, [&] {
        good = good && product.run(context, algo, weight.weight, x.data, y.data, accumulate) ==
                           CUBLAS_STATUS_SUCCESS;
      });
    }
    std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
    const float median = times[kRuns / 2];
    if (good && (choice == nullptr || median < best)) {
      best = median;
      choice = &algo;
    }
  }
  if (accumulate) {
    check(cudaMemcpy2DAsync(y.data, stride_bytes, rest, row_bytes, row_bytes, rows,
                            cudaMemcpyDeviceToDevice, stream),
          "linear");
  }
  if (choice == nullptr) fail("linear: no cuBLASLt algorithm ran");
  return *choice;
}

// Without split sums, and for any number of rows.
std::vector<cublasLtMatmulAlgo_t> exact_candidates(const CudaContext& context,
                                                   const LinearCuda& weight, ConstMatrix x,
                                                   Matrix y) {
  std::vector<cublasLtMatmulAlgo_t> out;
  for (const int64_t rows : {kExactTimedRows, int64_t{64}, int64_t{1024}}) {
    const Product product(weight, rows, x.dtype, x.stride, y.dtype, y.stride);
    for (const auto& result : product.heuristics(context.lt(), 0, 16)) {
      if (result.state != CUBLAS_STATUS_SUCCESS || splits_sums(result.algo)) continue;
      const bool fits = std::all_of(std::begin(kExactRows), std::end(kExactRows), [&](int64_t n) {
        return Product(weight, n, x.dtype, x.stride, y.dtype, y.stride)
            .fits(context.lt(), result.algo, 0);
      });
      if (fits) out.push_back(result.algo);
    }
  }
  return out;
}

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

bool in_pieces_of_16(const void* data, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}

}  // namespace

const cublasLtMatmulAlgo_t& LinearPlans::algorithm(const CudaContext& context,
                                                   const LinearCuda& weight, ConstMatrix x,
                                                   Matrix y, bool accumulate) {
  const bool exact = context.mode() == Mode::kExact;
  const LinearKey key{weight.n_out, weight.n_in, exact ? 0 : y.rows,
                      weight.type,  y.dtype,     accumulate};
  const auto found = chosen_.find(key);
  if (found != chosen_.end()) return found->second;
  REPLAYSSM_CHECK(!capturing(context.stream()), "first call of ", weight.n_out, " x ", weight.n_in,
                  ", ", y.rows, " rows, in a capture");
  const Product product(weight, y.rows, x.dtype, x.stride, y.dtype, y.stride);
  std::vector<cublasLtMatmulAlgo_t> candidates;
  if (exact) {
    candidates = exact_candidates(context, weight, x, y);
  } else {
    for (const auto& result : product.heuristics(context.lt(), kProductBytes, 8)) {
      if (result.state == CUBLAS_STATUS_SUCCESS) candidates.push_back(result.algo);
    }
  }
  if (candidates.empty()) {
    fail("linear: cuBLASLt has no algorithm for ", weight.n_out, " x ", weight.n_in, ", ", y.rows,
         " rows");
  }
  return chosen_.emplace(key, fastest(context, product, candidates, weight, x, y, accumulate))
      .first->second;
}

void linear(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
            bool accumulate) {
  REPLAYSSM_CHECK(x.rows == y.rows && x.cols == weight.n_in && y.cols == weight.n_out, "x ", x.rows,
                  " x ", x.cols, ", y ", y.rows, " x ", y.cols, ", weight ", weight.n_out, " x ",
                  weight.n_in);
  REPLAYSSM_CHECK(!accumulate || y.dtype == DType::kF32, "accumulate to ", dtype_name(y.dtype));
  REPLAYSSM_CHECK(weight.type == WeightType::kF32 || weight.type == WeightType::kBF16,
                  "FP8 weights");
  if (y.rows == 0) return;
  const bool pieces = weight.type == WeightType::kBF16 && x.dtype == DType::kBF16 &&
                      weight.n_in % 8 == 0 && in_pieces_of_16(x.data, x.stride * 2) &&
                      in_pieces_of_16(weight.weight, weight.n_in * 2);
  const bool product =
      pieces && weight.n_out % 8 == 0 && in_pieces_of_16(y.data, y.stride * dtype_bytes(y.dtype));
  const bool exact = context.mode() == Mode::kExact;
  if (pieces && !exact && y.rows <= kFewRows) {
    linear_few_rows(context, weight, x, y, accumulate);
  } else if (product) {
    const auto& algo = context.linear_plans().algorithm(context, weight, x, y, accumulate);
    const Product run(weight, y.rows, x.dtype, x.stride, y.dtype, y.stride);
    check(run.run(context, algo, weight.weight, x.data, y.data, accumulate), "linear");
  } else {
    linear_plain(context, weight, x, y, accumulate);
  }
}

}  // namespace replayssm::ops::cuda
