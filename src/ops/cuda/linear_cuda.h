// src/ops/linear.h on the device:  y[r, o] = sum_i weight[o, i] x[r, i]   (+ y[r, o])
//
//   weight [n_out, n_in] row-major, packed, 16-byte aligned; fp32, bf16, or FP8 E4M3 with scales;
//   or of few bits, packed (few_bits_cuda.h)
//   x [rows, n_in] bf16 (fp32 with an fp32 weight), y [rows, n_out] bf16 or fp32
//
// Sums are fp32. kFast: own kernels for one row and for few outputs, else cuBLASLt's algorithm of
// choice for the rows. kExact: one algorithm a weight for every number of rows, its sums in one
// order; the first rows of a longer x are what they are alone, to the bit. FP8 weights quantise x
// on the way, a row at a time. Few bits have one own kernel for all rows; kFast widens them to bf16
// for many.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/cuda/context_cuda.h"
#include "ops/cuda/few_bits_cuda.h"
#include "ops/matrix.h"

namespace replayssm::ops::cuda {

enum class WeightType : int32_t {
  kF32,
  kBF16,
  kFp8Row,    // E4M3, one scale per output: scales [n_out]; x: one scale per row. A tensor with one
              // scale has it n_out times.
  kFp8Block,  // E4M3, 128 x 128 blocks: scales [ceil(n_out / 128), fp8_scale_stride(n_in)]; x by
              // one scale per row and 128 columns
  kFewBits,   // as few_bits_cuda.h has them; scales: the outputs' factors [n_out]
  kStack,     // of several types: parts whose outputs come one after another
};

constexpr bool is_fp8(WeightType type) {
  return type == WeightType::kFp8Row || type == WeightType::kFp8Block;
}

constexpr int64_t kFp8Block = 128;
constexpr int64_t fp8_scale_stride(int64_t n_in) {
  return ((n_in + kFp8Block - 1) / kFp8Block + 3) / 4 * 4;
}

// Of a type whose elements stand one by one.
constexpr int64_t weight_bytes(WeightType type, int64_t n_out, int64_t n_in) {
  return n_out * n_in * (type == WeightType::kF32 ? 4 : type == WeightType::kBF16 ? 2 : 1);
}

struct LinearCuda {
  const void* weight = nullptr;
  WeightType type = WeightType::kBF16;
  int64_t n_out = 0;
  int64_t n_in = 0;
  const float* scales = nullptr;  // device; FP8 and few bits
  FewBits few = {};
  std::shared_ptr<const std::vector<LinearCuda>> parts;
};

// accumulate: y += W x, y fp32: straight into the residual stream. y may not overlap x.
//
// The first call of a shape (n_out, n_in, types, accumulate, and in kFast the rows) chooses its
// algorithm: in kFast by timing, which synchronises and leaves the right result; in kExact by rule,
// so that every process chooses alike. Run a pass once before it is captured; in a capture an
// unseen shape is a failed check.
void linear(const CudaContext& context, const LinearCuda& weight, ConstMatrix x, Matrix y,
            bool accumulate = false);

// linear() of silu_mul()'s or relu2()'s bf16 result, to the bit, without its way through memory;
// FP8 weights only. in: gate [n_in] | up [n_in], or what is squared.
enum class Activation { kNone, kSiluMul, kRelu2 };
void linear_activated(const CudaContext& context, const LinearCuda& weight, Activation activation,
                      ConstMatrix in, Matrix y, bool accumulate = false);

}  // namespace replayssm::ops::cuda
