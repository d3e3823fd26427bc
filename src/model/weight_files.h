// The tensors of a model's files as a loader takes them: each used exactly once or listed as
// skipped; anything else refuses the load, naming file and tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/families/family.h"
#include "model/fp8.h"
#include "model/safetensors.h"
#include "ops/matrix.h"
#include "ops/quant.h"

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
  kFewBits,    // as model/formats/published.h or gguf_model.h reads it
};

// Of a folder of safetensors or of a GGUF file (open_weights() in model_source.h).
class WeightFiles {
 public:
  virtual ~WeightFiles() = default;

  virtual bool has(const std::string& name) const = 0;
  virtual MatrixFormat format_of(const std::string& name) const = 0;
  // Of a wide matrix, unchecked.
  virtual DType dtype_of(const std::string& name) const = 0;

  // The part's rows, aligned; FP8, and of GGUF few bits, widened to `to`, fp32 or bf16. Valid until
  // the next call.
  virtual ops::ConstMatrix rows(const MatrixPart& part, DType to) = 0;
  // An FP8 matrix as it is kept; whole: the part says which rows are used.
  virtual const Fp8Matrix& fp8(const MatrixPart& part) = 0;
  // The part's rows in few bits; reads from the files, which must outlive it.
  virtual ops::QuantMatrix few_bits(const MatrixPart& part) = 0;
  // Whether few_bits() gives a GDN layer's output projection with its value heads tiled
  // (GdnWeights::tiled).
  virtual bool is_tiled(const std::string& name) const = 0;
  // fp32 [n]. kConvWeight comes as [width, n / width], as the kernels take it.
  virtual std::vector<float> vector(const std::string& name, int64_t n, VectorKind kind,
                                    int32_t width) = 0;
  // A tied model's file may hold the head too: refuses one that differs from the embedding.
  virtual void check_tied_head() = 0;

  // Refuses tensors that nobody asked for, but for those that are known and not run.
  virtual void finish() = 0;
  virtual const std::vector<std::string>& skipped() const = 0;
  virtual int64_t n_parameters() const = 0;  // of what was taken, without scales
};

std::unique_ptr<WeightFiles> open_safetensors(const ModelDescription& model,
                                              const std::string& folder);
std::unique_ptr<WeightFiles> open_gguf(const std::string& path);

// [width, channels], as the kernels take a convolution, of [channels, width], as files keep it.
std::vector<float> taps_first(const std::vector<float>& weight, int32_t width);

// The type in which the files keep the model: that of its embedding table.
DType stored_dtype(const ModelDescription& model, const TensorFiles& files);

}  // namespace replayssm
