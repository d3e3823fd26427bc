// Where a device model's weights come from: a folder's files, or what stands for them in a bench.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "model/model.h"
#include "model/weight_files.h"
#include "ops/cuda/linear_cuda.h"

namespace replayssm {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool has(const std::string& name) const = 0;
  // How products should hold the matrix; kBF16 is always possible.
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

using OpenWeights = std::function<std::unique_ptr<WeightSource>(const Model&)>;

// Elements of the scales of an FP8 matrix.
int64_t n_scales(ops::cuda::WeightType type, int64_t n_out, int64_t n_in);

// A folder's tensors: matrices in BF16 or FP8 with scales, which is widened where products take
// BF16. Names and shapes are checked as by the CPU's loader.
std::unique_ptr<WeightSource> file_weights(const Model& model);

}  // namespace replayssm
