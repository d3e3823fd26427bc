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

// Rows [first, first + n_rows) of a matrix of `rows` rows.
struct MatrixPart {
  std::string name;
  int64_t rows = 0, cols = 0;
  int64_t first = 0, n_rows = 0;
  int64_t stack = 1;  // the tensor has one more dimension, of so many matrices one below the other
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool has(const std::string& name) const = 0;
  // How products should hold the matrix; kBF16 goes always.
  virtual ops::cuda::WeightType type_of(const std::string& name) const = 0;
  // `to` and `scales` are device memory: the part's rows, and with FP8 n_rows scales or, by blocks,
  // ceil(n_rows / 128) rows of them; part.first is then a multiple of 128.
  virtual void matrix(const MatrixPart& part, ops::cuda::WeightType type, void* to,
                      float* scales) = 0;
  // fp32 [n]. kConvWeight is kept as [width, n / width], as the kernel takes it.
  virtual void vector(const std::string& name, int64_t n, VectorKind kind, int32_t width,
                      float* to) = 0;
  // Every tensor has been asked for.
  virtual void finish() = 0;
};

// Elements of the scales of an FP8 matrix.
int64_t n_scales(ops::cuda::WeightType type, int64_t n_out, int64_t n_in);

// Small values that keep activations near one; `type` is every matrix's. The stream must outlive
// it.
std::unique_ptr<WeightSource> dummy_weights(ops::cuda::WeightType type, const Stream& stream);
// A folder's tensors: matrices in BF16 or FP8 with scales, which is widened where products take
// BF16. Names and shapes are checked as by the CPU's loader.
std::unique_ptr<WeightSource> file_weights(const ModelDescription& model,
                                           const std::string& folder);

}  // namespace replayssm
