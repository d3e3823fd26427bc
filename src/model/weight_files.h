// The tensors of a model's files as a loader takes them: each used exactly once or listed as
// skipped; anything else refuses the load, naming file and tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/memory.h"
#include "model/families/family.h"
#include "model/formats/published.h"
#include "model/fp8.h"
#include "model/safetensors.h"
#include "ops/matrix.h"

namespace replayssm {

// What a vector of a layer is.
enum class VectorKind { kNorm, kZeroCentredNorm, kConvWeight, kBias, kALog, kSkip, kDtBias };

// Rows [first, first + n_rows) of a matrix of `rows` rows.
struct MatrixPart {
  std::string name;
  int64_t rows = 0, cols = 0;
  int64_t first = 0, n_rows = 0;
  int64_t stack = 1;  // the tensor has one more dimension, of so many matrices one below the other
};

enum class LinearUse {
  kLayer,   // a product of a layer: may stay in few bits
  kGate,    // gates: never in few bits
  kRouter,  // likewise, and may be padded with outputs of zeros
};

// How the files keep a matrix.
enum class MatrixFormat {
  kWide,       // F32, F16 or BF16
  kFp8Tensor,  // E4M3 with one scale
  kFp8Block,   // E4M3 with a scale for each 128 x 128 block
  kFewBits,    // as model/formats/published.h reads it
};

class WeightFiles {
 public:
  WeightFiles(const ModelDescription& model, const std::string& folder);

  bool has(const std::string& name) const;
  MatrixFormat format_of(const std::string& name) const;
  // Of a wide matrix, unchecked.
  DType dtype_of(const std::string& name) const;

  // The part's rows, aligned; FP8 widened to `fp8_to`, fp32 or bf16. Valid until the next call.
  ops::ConstMatrix rows(const MatrixPart& part, DType fp8_to);
  // An FP8 matrix as it is kept; whole: the part says which rows are used.
  const Fp8Matrix& fp8(const MatrixPart& part);
  // The part's rows in few bits; reads from the files, which must outlive it.
  ops::QuantMatrix few_bits(const MatrixPart& part);
  // fp32 [n]. kConvWeight comes as [width, n / width], as the kernels take it.
  std::vector<float> vector(const std::string& name, int64_t n, VectorKind kind, int32_t width);
  // A tied model's file may hold the head too: refuses one that differs from the embedding.
  void check_tied_head();

  // Refuses tensors that nobody asked for, but for those that are known and not run.
  void finish();
  const std::vector<std::string>& skipped() const { return skipped_; }
  int64_t n_parameters() const { return n_parameters_; }  // of what was taken, without scales

 private:
  const TensorView& find(const MatrixPart& part) const;
  const TensorView& find(const std::string& name, const std::vector<int64_t>& shape) const;
  void mark(const TensorView& tensor, int64_t n);

  const ModelDescription& model_;
  TensorFiles files_;
  QuantHints hints_;
  std::unordered_map<const TensorView*, int64_t> taken_;  // elements
  std::vector<std::string> skipped_;
  int64_t n_parameters_ = 0;
  // The last matrix that was read as FP8, and the last that was widened or copied.
  std::optional<Fp8Matrix> fp8_;
  const TensorView* copied_ = nullptr;
  DType copied_dtype_ = DType::kF32;
  Buffer copy_;
};

// The type in which the files keep the model: that of its embedding table.
DType stored_dtype(const ModelDescription& model, const TensorFiles& files);

}  // namespace replayssm
