// FP8 weights as they are published: E4M3 bytes "x", and the scales of x beside them,
//
//   "x_scale_inv"  F32 or BF16 [ceil(rows / 128), ceil(cols / 128)]: one a block      (Qwen)
//   "x_scale"      F32, one for all, and "input_scale" for what x multiplies     (Nemotron)
//
// of which the weight is value * scale, taken in fp32.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/safetensors.h"
#include "replay/types.h"

namespace replayssm {

constexpr int64_t kFp8Block = 128;

float e4m3_to_float(uint8_t bits);

struct Fp8Matrix {
  const TensorView* values = nullptr;     // F8_E4M3 [rows, cols], in the file's map
  std::vector<float> scales;              // one, or row-major a block
  bool blocks = false;                    // of kFp8Block x kFp8Block; else one scale for all
  std::optional<float> input_scale;       // of the activations, measured by the publisher
  std::vector<const TensorView*> beside;  // the scales' tensors

  int64_t rows() const { return values->shape[0]; }
  int64_t cols() const { return values->shape[1]; }
};

// Refuses scales that are missing, of the wrong shape, negative or not finite.
Fp8Matrix read_fp8(const TensorFiles& files, const TensorView& values);

// value * scale in fp32, rounded once: `out` [rows, cols] fp32 or bf16.
void widen_fp8(const Fp8Matrix& matrix, DType to, void* out);

}  // namespace replayssm
