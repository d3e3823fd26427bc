#include "ops/cuda/device.cuh"
#include "ops/cuda/elementwise_cuda.h"

namespace replayssm::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Element d of head h of token t; a matrix has one head.
struct Operand {
  void* data;
  DType dtype;
  int64_t token_stride;
  int64_t head_stride;

  __device__ int64_t index(int64_t token, int64_t head, int64_t d) const {
    return token * token_stride + head * head_stride + d;
  }
};

struct Args {
  Operand a, b, y;
  int64_t tokens, heads, dim;
  float scale;
};

enum class Op { kSiluMul, kRelu2, kSigmoidMul, kAdd, kCopy };

template <Op kOp>
__device__ float apply(float a, float b, float scale) {
  if constexpr (kOp == Op::kSiluMul) return silu(a) * b;
  if constexpr (kOp == Op::kRelu2) return (a > 0.0f || a != a) ? a * a : 0.0f;
  if constexpr (kOp == Op::kSigmoidMul) return a * sigmoid(b);
  if constexpr (kOp == Op::kAdd) return __fmaf_rn(scale, b, a);
  if constexpr (kOp == Op::kCopy) return scale * a;
}

// kHalves: all bf16.
template <Op kOp, bool kPieces, bool kHalves>
__global__ void __launch_bounds__(kThreads)
    element_kernel(const __grid_constant__ Args args, uint32_t count) {
  start_in_turn();
  constexpr bool kTwo = kOp != Op::kRelu2 && kOp != Op::kCopy;
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  const auto chunks = static_cast<uint32_t>((args.dim + kEight - 1) / kEight);
  const auto heads = static_cast<uint32_t>(args.heads);
  const uint32_t row = i / chunks, token = row / heads, head = row % heads;
  const int64_t d = i % chunks * kEight;
  const int n = static_cast<int>(min(kEight, args.dim - d));
  const DType a_dtype = kHalves ? DType::kBF16 : args.a.dtype;
  const DType b_dtype = kHalves ? DType::kBF16 : args.b.dtype;
  const DType y_dtype = kHalves ? DType::kBF16 : args.y.dtype;
  float a[8], b[8] = {}, y[8];
  load_eight<kPieces>(a, args.a.data, a_dtype, args.a.index(token, head, d), n);
  if constexpr (kTwo) load_eight<kPieces>(b, args.b.data, b_dtype, args.b.index(token, head, d), n);
#pragma unroll
  for (int j = 0; j < 8; ++j) y[j] = apply<kOp>(a[j], b[j], args.scale);
  store_eight<kPieces>(y, args.y.data, y_dtype, args.y.index(token, head, d), n);
}

template <Op kOp>
void launch(const CudaContext& context, const Args& args, bool pieces, const char* name) {
  const int64_t count = args.tokens * args.heads * ((args.dim + kEight - 1) / kEight);
  if (count == 0) return;
  REPLAYSSM_CHECK(count <= INT32_MAX, name, " of ", args.tokens, " rows");
  const bool halves = pieces && args.a.dtype == DType::kBF16 && args.b.dtype == DType::kBF16 &&
                      args.y.dtype == DType::kBF16;
  auto* const kernel = halves   ? element_kernel<kOp, true, true>
                       : pieces ? element_kernel<kOp, true, false>
                                : element_kernel<kOp, false, false>;
  launch_in_turn(context, name, kernel, blocks_for(count, kThreads), kThreads, 0, args,
                 static_cast<uint32_t>(count));
}

Operand operand(ConstMatrix x) { return {const_cast<void*>(x.data), x.dtype, x.stride, 0}; }
Operand operand(ConstHeads x) {
  return {const_cast<void*>(x.data), x.dtype, x.token_stride, x.head_stride};
}

void check_pair(ConstMatrix a, ConstMatrix b) {
  REPLAYSSM_CHECK(a.rows == b.rows && a.cols == b.cols, a.rows, " x ", a.cols, " and ", b.rows,
                  " x ", b.cols);
}

template <Op kOp>
void run(const CudaContext& context, ConstMatrix a, ConstMatrix b, Matrix y, float scale,
         const char* name) {
  check_pair(a, y);
  check_pair(b, y);
  REPLAYSSM_CHECK(a.dtype != DType::kI8 && is_activation(b.dtype) && is_activation(y.dtype), name,
                  ": ", dtype_name(a.dtype), " to ", dtype_name(y.dtype));
  launch<kOp>(context, {operand(a), operand(b), operand(ConstMatrix(y)), y.rows, 1, y.cols, scale},
              in_pieces(a) && in_pieces(b) && in_pieces(y), name);
}

struct EmbedArgs {
  const void* table;
  DType table_dtype;
  int64_t n_vocab, table_stride;
  const int32_t* tokens;
  void* y;
  DType y_dtype;
  int64_t rows, cols, y_stride;
  float scale;
};

template <bool kPieces>
__global__ void __launch_bounds__(kThreads) embed_kernel(const __grid_constant__ EmbedArgs args) {
  start_in_turn();
  const int64_t chunks = (args.cols + kEight - 1) / kEight;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.rows * chunks) return;
  const int64_t d = i % chunks * kEight, row = i / chunks;
  const int n = static_cast<int>(min(kEight, args.cols - d));
  const int64_t token = args.tokens[row];
  float x[8] = {};
  if (token >= 0 && token < args.n_vocab) {
    load_eight<kPieces>(x, args.table, args.table_dtype, token * args.table_stride + d, n);
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] *= args.scale;
  store_eight<kPieces>(x, args.y, args.y_dtype, row * args.y_stride + d, n);
}

}  // namespace

void silu_mul(const CudaContext& context, ConstMatrix gate, ConstMatrix up, Matrix y) {
  run<Op::kSiluMul>(context, gate, up, y, 1.0f, "silu_mul");
}

void relu2(const CudaContext& context, ConstMatrix x, Matrix y) {
  run<Op::kRelu2>(context, x, y, y, 1.0f, "relu2");
}

void sigmoid_mul(const CudaContext& context, ConstHeads x, ConstHeads gate, Heads y) {
  REPLAYSSM_CHECK(x.tokens == gate.tokens && x.heads == gate.heads && x.dim == gate.dim &&
                      x.tokens == y.tokens && x.heads == y.heads && x.dim == y.dim,
                  "x ", x.heads, " x ", x.dim, ", gate ", gate.heads, " x ", gate.dim);
  REPLAYSSM_CHECK(is_activation(x.dtype) && is_activation(gate.dtype) && is_activation(y.dtype),
                  dtype_name(x.dtype), " to ", dtype_name(y.dtype));
  launch<Op::kSigmoidMul>(
      context, {operand(x), operand(gate), operand(ConstHeads(y)), x.tokens, x.heads, x.dim, 1.0f},
      in_pieces(x) && in_pieces(gate) && in_pieces(y), "sigmoid_mul");
}

void residual_add(const CudaContext& context, Matrix x, ConstMatrix y, float scale) {
  REPLAYSSM_CHECK(x.dtype == DType::kF32, dtype_name(x.dtype));
  run<Op::kAdd>(context, x, y, x, scale, "residual_add");
}

void copy(const CudaContext& context, ConstMatrix x, Matrix y, float scale) {
  run<Op::kCopy>(context, x, y, y, scale, "copy");
}

void embed(const CudaContext& context, ConstMatrix table, const int32_t* tokens, Matrix y,
           float scale) {
  REPLAYSSM_CHECK(table.cols == y.cols && table.dtype != DType::kI8 && is_activation(y.dtype),
                  "table of ", table.cols, ", y of ", y.cols);
  if (y.rows == 0) return;
  const EmbedArgs args{table.data, table.dtype, table.rows, table.stride, tokens, y.data,
                       y.dtype,    y.rows,      y.cols,     y.stride,     scale};
  const unsigned blocks = blocks_for(y.rows * ((y.cols + kEight - 1) / kEight), kThreads);
  auto* const kernel = in_pieces(table) && in_pieces(y) ? embed_kernel<true> : embed_kernel<false>;
  launch_in_turn(context, "embed", kernel, blocks, kThreads, 0, args);
}

}  // namespace replayssm::ops::cuda
