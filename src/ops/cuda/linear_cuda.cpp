#include "ops/cuda/linear_cuda.h"

#include <algorithm>
#include <array>
#include <span>

#include "core/error.h"
#include "ops/cuda/linear_few_cuda.h"
#include "ops/cuda/linear_fp8_cuda.h"
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

// That a sum is whole, or cut into parts that are kept in fp32 and added in order.
bool sums_in_order(const cublasLtMatmulAlgo_t& algo) {
  int32_t split = 0;
  uint32_t reduction = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                       sizeof(split), nullptr);
  cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                       sizeof(reduction), nullptr);
  if (split <= 1) return reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
  return reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

// Row counts that a kExact algorithm must accept; more rows go in pieces.
constexpr int64_t kMaxExactRows = 1024;
constexpr int64_t kExactRows[] = {1, 2, 3, 7, 16, 33, 64, 100, 256, 257, 1000, 1024};
constexpr int64_t kExactRowsFp8[] = {4, 8, 16, 36, 64, 100, 256, 260, 1000, 1024};

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

Product::Product(const LinearCuda& weight, const ProductInput& x, DType y, int64_t y_stride)
    : weight_data_(weight.weight), x_data_(x.data) {
  check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  cudaDataType_t type = CUDA_R_16BF;
  if (is_fp8(weight.type)) {
    type = CUDA_R_8F_E4M3;
    const bool rows = weight.type == WeightType::kFp8Row;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, weight.scales);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x.scales);
  }
  weight_ = layout(type, weight.n_in, weight.n_out, weight.n_in);
  x_ = layout(type, weight.n_in, x.rows, x.stride);
  y_ = layout(type_of(y), weight.n_out, x.rows, y_stride);
}

Product::~Product() {
  cublasLtMatrixLayoutDestroy(y_);
  cublasLtMatrixLayoutDestroy(x_);
  cublasLtMatrixLayoutDestroy(weight_);
  cublasLtMatmulDescDestroy(operation_);
}

std::vector<cublasLtMatmulHeuristicResult_t> Product::heuristics(cublasLtContext* lt,
                                                                 bool whole_sums, int n) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const auto bytes = static_cast<uint64_t>(LinearPlans::kProductBytes);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                       sizeof(bytes));
  if (whole_sums) {
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                         &none, sizeof(none));
  }
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

bool Product::takes(cublasLtContext* lt, const cublasLtMatmulAlgo_t& algo) const {
  cublasLtMatmulHeuristicResult_t result;
  return cublasLtMatmulAlgoCheck(lt, operation_, weight_, x_, y_, y_, &algo, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         static_cast<int64_t>(result.workspaceSize) <= LinearPlans::kProductBytes;
}

cublasStatus_t Product::run(const CudaContext& context, const cublasLtMatmulAlgo_t& algo, void* y,
                            bool accumulate) const {
  const float one = 1.0f, beta = accumulate ? 1.0f : 0.0f;
  return cublasLtMatmul(context.lt(), operation_, &one, weight_data_, weight_, x_data_, x_, &beta,
                        y, y_, y, y_, &algo, context.workspace(), LinearPlans::kProductBytes,
                        context.stream());
}

namespace {

// Chooses among candidates by the median of a few runs, each with cold caches. What y held when it
// is accumulated to is put back.
cublasLtMatmulAlgo_t fastest(const CudaContext& context, const Product& product,
                             const std::vector<cublasLtMatmulAlgo_t>& candidates,
                             const LinearCuda& weight, Matrix y, bool accumulate) {
  constexpr int kRuns = 5;
  const int64_t used =
      LinearPlans::kProductBytes +
      (is_fp8(weight.type) ? LinearPlans::kQuantisedBytes + LinearPlans::kRestBytes : 0);
  const int64_t n_rest = CudaContext::kWorkspaceBytes - used;
  char* const rest = static_cast<char*>(context.workspace()) + used;
  const auto row_bytes = static_cast<size_t>(y.cols * dtype_bytes(y.dtype));
  const auto stride_bytes = static_cast<size_t>(y.stride * dtype_bytes(y.dtype));
  const bool kept = static_cast<int64_t>(row_bytes) * y.rows <= n_rest;
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
      check(cudaMemsetAsync(rest + cold_from, 0, static_cast<size_t>(n_rest - cold_from), stream),
            "linear");
      t = events.time(stream, [&] {
        good = good && product.run(context, algo, y.data, accumulate) == CUBLAS_STATUS_SUCCESS;
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

// With sums in one order for any number of rows: the first algorithm that cuBLASLt proposes for 128
// rows (if none, for others) and accepts for all. What it proposes for 256 rows costs twice as much
// for one row and gains 1/8 for 256 (docs/lab/ops_cuda.md). FP8: whole sums, for 256 rows first. No
// timing: the choice is the same in every process.
cublasLtMatmulAlgo_t exact_algorithm(const CudaContext& context, const LinearCuda& weight,
                                     const ProductInput& x, Matrix y) {
  const auto product_of = [&](int64_t rows) {
    return Product(weight, {x.data, x.scales, rows, x.stride}, y.dtype, y.stride);
  };
  const bool fp8 = is_fp8(weight.type);
  const std::span<const int64_t> all = fp8 ? std::span<const int64_t>(kExactRowsFp8) : kExactRows;
  for (const int64_t rows : {fp8 ? 256 : 128, 256, 192, 128, 64, 32, 16, 512, 1024}) {
    for (const auto& result : product_of(rows).heuristics(context.lt(), fp8, 16)) {
      if (result.state != CUBLAS_STATUS_SUCCESS || !sums_in_order(result.algo)) continue;
      if (std::all_of(all.begin(), all.end(),
                      [&](int64_t n) { return product_of(n).takes(context.lt(), result.algo); })) {
        return result.algo;
      }
    }
  }
  fail("linear: no algorithm of cuBLASLt for ", weight.n_out, " x ", weight.n_in,
       " serves every number of rows with sums in one order");
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
                                                   const LinearCuda& weight, const ProductInput& x,
                                                   Matrix y, bool accumulate) {
  const bool exact = context.mode() == Mode::kExact;
  const LinearKey key{weight.n_out, weight.n_in, exact ? 0 : y.rows,
                      weight.type,  y.dtype,     accumulate};
  const auto found = chosen_.find(key);
  if (found != chosen_.end()) return found->second;
  REPLAYSSM_CHECK(!capturing(context.stream()), "first call of ", weight.n_out, " x ", weight.n_in,
                  ", ", y.rows, " rows, in a capture");
  if (exact) return chosen_.emplace(key, exact_algorithm(context, weight, x, y)).first->second;
  const Product product(weight, x, y.dtype, y.stride);
  std::vector<cublasLtMatmulAlgo_t> candidates;
  for (const auto& result : product.heuristics(context.lt(), false, 8)) {
    if (result.state == CUBLAS_STATUS_SUCCESS) candidates.push_back(result.algo);
  }
  if (candidates.empty()) {
    fail("linear: cuBLASLt has no algorithm for ", weight.n_out, " x ", weight.n_in, ", ", y.rows,
         " rows");
  }
  return chosen_.emplace(key, fastest(context, product, candidates, weight, y, accumulate))
      .first->second;
}

namespace {

void run_product(const CudaContext& context, const LinearCuda& weight, const ProductInput& x,
                 Matrix y, bool accumulate) {
  const auto& algo = context.linear_plans().algorithm(context, weight, x, y, accumulate);
  check(Product(weight, x, y.dtype, y.stride).run(context, algo, y.data, accumulate), "linear");
}

// What an FP8 product multiplies, before it is quantised.
struct Rows {
  ConstMatrix in;
  Activation activation = Activation::kNone;

  int64_t cols() const { return activation == Activation::kSiluMul ? in.cols / 2 : in.cols; }
  Rows slice(int64_t first, int64_t n) const { return {in.slice_rows(first, n), activation}; }
};

Quantised quantised(const CudaContext& context, const LinearCuda& weight, const Rows& x) {
  char* const memory = static_cast<char*>(context.workspace()) + LinearPlans::kProductBytes;
  const Quantised out = quantised_at(memory, x.in.rows, weight.n_in);
  switch (x.activation) {
    case Activation::kNone:
      quantise(context, weight.type, x.in, out);
      break;
    case Activation::kSiluMul:
      quantise_silu_mul(context, weight.type, x.in.slice_cols(0, weight.n_in),
                        x.in.slice_cols(weight.n_in, weight.n_in), out);
      break;
    case Activation::kRelu2:
      quantise_relu2(context, weight.type, x.in, out);
      break;
  }
  return out;
}

void run_quantised(const CudaContext& context, const LinearCuda& weight, const Rows& x, Matrix y,
                   bool accumulate) {
  const Quantised q = quantised(context, weight, x);
  run_product(context, weight, {q.data, q.scales, q.rows, weight.n_in}, y, accumulate);
}

// Rows that fit the workspace at once: x and its scales, which are fewer bytes than x by far.
int64_t quantised_rows(const LinearCuda& weight) {
  return LinearPlans::kQuantisedBytes / (weight.n_in + weight.n_in / 16 + 64) / 4 * 4;
}

// body(first, n) for at most `most` rows at a time.
template <typename Body>
void by_pieces(int64_t rows, int64_t most, const Body& body) {
  for (int64_t first = 0; first < rows; first += most) body(first, std::min(most, rows - first));
}

// Rows of one product of cuBLASLt, `fit` at most.
int64_t product_rows(const CudaContext& context, int64_t fit) {
  return context.mode() == Mode::kExact ? std::min(fit, kMaxExactRows) : fit;
}

void run_narrow(const CudaContext& context, const LinearCuda& weight, const Rows& x, Matrix y) {
  by_pieces(y.rows, quantised_rows(weight), [&](int64_t first, int64_t n) {
    linear_fp8_narrow(context, weight, quantised(context, weight, x.slice(first, n)),
                      y.slice_rows(first, n));
  });
}

// Products need multiples of four rows; a remainder goes through the workspace.
void run_fp8(const CudaContext& context, const LinearCuda& weight, const Rows& x, Matrix y,
             bool accumulate) {
  const int64_t whole = y.rows / 4 * 4;
  by_pieces(whole, product_rows(context, quantised_rows(weight)), [&](int64_t first, int64_t n) {
    run_quantised(context, weight, x.slice(first, n), y.slice_rows(first, n), accumulate);
  });
  if (whole == y.rows) return;
  const int64_t rest = y.rows - whole;
  Matrix work = y;
  work.data = static_cast<char*>(context.workspace()) + LinearPlans::kProductBytes +
              LinearPlans::kQuantisedBytes;
  work.rows = 4;
  work.stride = y.cols;
  REPLAYSSM_CHECK(4 * y.cols * dtype_bytes(y.dtype) <= LinearPlans::kRestBytes, y.cols, " columns");
  const auto row_bytes = static_cast<size_t>(y.cols * dtype_bytes(y.dtype));
  const auto stride_bytes = static_cast<size_t>(y.stride * dtype_bytes(y.dtype));
  const auto copy_rows = [&](void* to, size_t to_stride, const void* from, size_t from_stride) {
    check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, row_bytes, static_cast<size_t>(rest),
                            cudaMemcpyDeviceToDevice, context.stream()),
          "linear");
  };
  if (accumulate) copy_rows(work.data, row_bytes, y.at(whole), stride_bytes);
  run_quantised(context, weight, x.slice(whole, rest), work, accumulate);
  copy_rows(y.at(whole), stride_bytes, work.data, row_bytes);
}

bool in_pieces(const LinearCuda& weight, ConstMatrix x) {
  return weight.type != WeightType::kF32 && x.dtype == DType::kBF16 &&
         weight.n_in % (is_fp8(weight.type) ? 16 : 8) == 0 &&
         in_pieces_of_16(x.data, x.stride * 2) && in_pieces_of_16(weight.weight, 0);
}
bool in_pieces(const LinearCuda& weight, Matrix y) {
  return weight.n_out % 8 == 0 && in_pieces_of_16(y.data, y.stride * dtype_bytes(y.dtype));
}
bool one_row(const CudaContext& context, Matrix y) {
  return context.mode() == Mode::kFast && y.rows == 1;
}

void linear_fp8(const CudaContext& context, const LinearCuda& weight, const Rows& x, Matrix y,
                bool accumulate) {
  REPLAYSSM_CHECK(in_pieces(weight, x.in) && in_pieces(weight, y), "FP8 weight ", weight.n_out,
                  " x ", weight.n_in, ", rows that are not aligned");
  if (one_row(context, y)) {
    linear_fp8_one_row(context, weight, quantised(context, weight, x), y, accumulate);
  } else if (weight.n_out <= kNarrow && !accumulate) {
    run_narrow(context, weight, x, y);
  } else {
    run_fp8(context, weight, x, y, accumulate);
  }
}

// From here on cuBLASLt's product makes up for widening the weights in kFast.
constexpr int64_t kWidenedRows = 512;
constexpr int64_t kWidenedBytes = int64_t{24} << 20;  // at once: stay in the L2 cache
static_assert(LinearPlans::kProductBytes + kWidenedBytes <= CudaContext::kWorkspaceBytes);

void run_widened(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
                 bool accumulate) {
  char* const memory = static_cast<char*>(context.workspace()) + LinearPlans::kProductBytes;
  const ProductInput input{x.data, nullptr, x.rows, x.stride};
  const int64_t most = std::max(kWidenedBytes / (2 * weight.n_in) / 128, int64_t{1}) * 128;
  by_pieces(weight.n_out, most, [&](int64_t first, int64_t n) {
    LinearCuda piece;
    piece.weight = memory;
    piece.n_out = n;
    piece.n_in = weight.n_in;
    const Matrix out = y.slice_cols(first, n);
    // The choice of an algorithm writes over the workspace.
    context.linear_plans().algorithm(context, piece, input, out, accumulate);
    widen_few(context, weight, first, n, memory);
    run_product(context, piece, input, out, accumulate);
  });
}

bool widens(const CudaContext& context, const LinearCuda& weight, Matrix y) {
  return context.mode() == Mode::kFast && y.rows >= kWidenedRows && in_pieces(weight, y) &&
         256 * weight.n_in <= kWidenedBytes;
}

void check_shapes(const LinearCuda& weight, const Rows& x, Matrix y, bool accumulate) {
  REPLAYSSM_CHECK(x.in.rows == y.rows && x.cols() == weight.n_in && y.cols == weight.n_out, "x ",
                  x.in.rows, " x ", x.cols(), ", y ", y.rows, " x ", y.cols, ", weight ",
                  weight.n_out, " x ", weight.n_in);
  REPLAYSSM_CHECK(!accumulate || y.dtype == DType::kF32, "accumulate to ", dtype_name(y.dtype));
}

}  // namespace

void linear(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
            bool accumulate) {
  check_shapes(weight, {x}, y, accumulate);
  if (y.rows == 0) return;
  const bool pieces = in_pieces(weight, x);
  if (weight.type == WeightType::kStack) {
    int64_t output = 0;
    for (const LinearCuda& part : *weight.parts) {
      linear(context, part, x, y.slice_cols(output, part.n_out), accumulate);
      output += part.n_out;
    }
  } else if (is_fp8(weight.type)) {
    linear_fp8(context, weight, {x}, y, accumulate);
  } else if (weight.type == WeightType::kFewBits) {
    if (widens(context, weight, y)) {
      run_widened(context, weight, x, y, accumulate);
    } else {
      linear_few(context, weight, x, y, accumulate);
    }
  } else if (pieces && one_row(context, y) && takes_one_row(weight)) {
    linear_one_row(context, weight, x, y, accumulate);
  } else if (pieces && context.mode() == Mode::kFast && takes_narrow(weight, y.rows)) {
    linear_narrow(context, weight, x, y, accumulate);
  } else if (pieces && in_pieces(weight, y)) {
    by_pieces(y.rows, product_rows(context, y.rows), [&](int64_t first, int64_t n) {
      run_product(context, weight, {x.at(first), nullptr, n, x.stride}, y.slice_rows(first, n),
                  accumulate);
    });
  } else {
    linear_plain(context, weight, x, y, accumulate);
  }
}

void linear_activated(const CudaContext& context, const LinearCuda& weight, Activation activation,
                      ConstMatrix in, Matrix y, bool accumulate) {
  REPLAYSSM_CHECK(is_fp8(weight.type), "an activation before a product that is not FP8");
  check_shapes(weight, {in, activation}, y, accumulate);
  if (y.rows > 0) linear_fp8(context, weight, {in, activation}, y, accumulate);
}

}  // namespace replayssm::ops::cuda
