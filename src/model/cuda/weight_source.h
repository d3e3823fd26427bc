// Where a device model's weights come from: a folder's files, or a keyed hash.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/cuda/device.h"
#include "model/families/family.h"
#include "model/safetensors.h"
#include "ops/cuda/linear_cuda.h"

namespace replayssm {

// What a vector of a layer is, for values that stand for real ones.
enum class VectorKind { kNorm, kZeroCentredNorm, kConvWeight, kBias, kALog, kSkip, kDtBias };

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // `to` is device memory. [rows, cols], the next rows of a stacked matrix.
  virtual void matrix(const std::string& name, int64_t rows, int64_t cols,
                      ops::cuda::WeightType type, void* to) = 0;
  // The n scales of an FP8 matrix of so many columns.
  virtual void scales(int64_t n, int64_t cols, float* to) = 0;
  // fp32 [n]. kConvWeight is kept as [width, n / width], as the kernel takes it.
  virtual void vector(const std::string& name, int64_t n, VectorKind kind, int32_t width,
                      float* to) = 0;
  // Every tensor has been asked for.
  virtual void finish() = 0;
};

// Writes nothing: for a walk that counts.
std::unique_ptr<WeightSource> no_weights();
// Small values that keep activations near one. The stream must outlive it.
std::unique_ptr<WeightSource> dummy_weights(const Stream& stream);
// A folder of BF16 tensors, for bf16 products. Names and shapes are checked as by the CPU's loader.
std::unique_ptr<WeightSource> file_weights(const ModelDescription& model,
                                           const std::string& folder);

}  // namespace replayssm
