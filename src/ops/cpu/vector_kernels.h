// Row kernels of the elementwise ops, norms, RoPE and sampling, one table an instruction set (see
// linear_kernels.h).
#pragma once

#include <cstdint>

#include "replay/types.h"

namespace replayssm::ops {

struct ConstSpan {
  const void* data = nullptr;
  DType dtype = DType::kF32;
};

struct Span {
  void* data = nullptr;
  DType dtype = DType::kF32;  // fp32 or bf16
};

struct NormArgs {
  int64_t n = 0;
  float eps = 0.0f;
  const float* weight = nullptr;  // [n] or null
  bool zero_centred = false;
};

struct GateArgs {
  bool sigmoid = false;  // else SiLU
  bool gate_first = false;
  bool normalise = true;
  float* work = nullptr;  // [n]
};

constexpr int64_t kNoiseTokens = 64;  // of one call

struct VectorKernels {
  void (*silu_mul)(ConstSpan gate, ConstSpan up, Span y, int64_t n);
  void (*relu2)(ConstSpan x, Span y, int64_t n);
  void (*sigmoid_mul)(ConstSpan x, ConstSpan gate, Span y, int64_t n);
  void (*add)(float* x, ConstSpan y, float scale, int64_t n);
  void (*copy)(ConstSpan x, Span y, float scale, int64_t n);  // x may be fp16
  void (*rms_norm)(ConstSpan x, Span y, const NormArgs& args);
  void (*gated_norm)(ConstSpan y, ConstSpan z, Span out, const NormArgs& norm,
                     const GateArgs& gate);
  // x is one head; cosine and sine [n_pairs]; pairs (i, i + n_pairs).
  void (*rope)(Span x, const float* cosine, const float* sine, int64_t n_pairs);
  // The largest element; NaN if any element is NaN.
  float (*max)(const float* x, int64_t n);
  // weights = exp((x - max) / temperature), all finite or -inf in x.
  void (*exp_weights)(const float* x, float max, float temperature, float* weights, int64_t n);
  // The noise (ops/gumbel.h) of kNoiseTokens tokens from block `first` on.
  void (*noise)(uint64_t seed, int64_t position, uint32_t first, uint32_t* out);
};

extern const VectorKernels kVectorPortable;
extern const VectorKernels kVectorAvx2;
extern const VectorKernels kVectorAvx512;

}  // namespace replayssm::ops
