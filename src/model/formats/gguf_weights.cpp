// The tensors of a GGUF file as a loader takes them.
#include "core/error.h"
#include "core/memory.h"
#include "model/formats/encode.h"
#include "model/formats/gguf_model.h"
#include "model/weight_files.h"

namespace replayssm {
namespace {

class GgufWeights final : public WeightFiles {
 public:
  explicit GgufWeights(const std::string& path) : model_(GgufModel::open(path)) {}

  bool has(const std::string& name) const override { return model_.has(name); }

  MatrixFormat format_of(const std::string& name) const override {
    return is_quantised(model_.type_of(name)) ? MatrixFormat::kFewBits : MatrixFormat::kWide;
  }

  DType dtype_of(const std::string& name) const override {
    return wide_dtype(model_.type_of(name));
  }

  ops::ConstMatrix rows(const MatrixPart& part, DType to) override {
    const GgufMatrix matrix = take(part);
    if (!matrix.quantised()) return matrix.dense(copy_).slice_rows(part.first, part.n_rows);
    const BlockType type = to == DType::kF32 ? BlockType::kF32 : BlockType::kBF16;
    const ops::QuantMatrix quant = matrix.quant();
    ops::QuantRowBuffer buffer(quant.format, part.cols);
    std::vector<float> row(static_cast<size_t>(part.cols)), ordered(row.size());
    copy_ = Buffer(static_cast<size_t>(part.n_rows * part.cols * dtype_bytes(to)));
    for (int64_t r = 0; r < part.n_rows; ++r) {
      quant.read(part.first + r, buffer.row());
      ops::dequantise_row(quant.format, part.cols, buffer.row(), row.data());
      for (size_t i = 0; i < matrix.inputs.size(); ++i) {
        ordered[i] = row[static_cast<size_t>(matrix.inputs[i])];
      }
      encode_blocks(type, matrix.inputs.empty() ? row.data() : ordered.data(), part.cols,
                    copy_.as<std::byte>() + r * part.cols * dtype_bytes(to));
    }
    return {copy_.data(), to, part.n_rows, part.cols, part.cols};
  }

  const Fp8Matrix& fp8(const MatrixPart& part) override {
    fail("tensor '", part.name, "' is not in FP8: GGUF has none");
  }

  ops::QuantMatrix few_bits(const MatrixPart& part) override {
    return take(part).quant().slice_rows(part.first, part.n_rows);
  }

  bool is_tiled(const std::string& name) const override {
    return format_of(name) == MatrixFormat::kFewBits && model_.has_tiled_inputs(name);
  }

  std::vector<float> vector(const std::string& name, int64_t n, VectorKind kind,
                            int32_t width) override {
    n_parameters_ += n;
    if (kind != VectorKind::kConvWeight) return model_.vector(name, n);
    return taps_first(model_.conv(name, n / width, width), width);
  }

  void check_tied_head() override {}  // a file with a head is of a model that is not tied

  void finish() override {
    for (const std::string& name : model_.unread()) {
      if (model_.is_skipped(name)) {
        skipped_.push_back(name);
        continue;
      }
      fail(model_.files().at(name).path, ": tensor '", name, "' has no place in a model of ",
           model_.architecture());
    }
  }
  const std::vector<std::string>& skipped() const override { return skipped_; }
  int64_t n_parameters() const override { return n_parameters_; }

 private:
  GgufMatrix take(const MatrixPart& part) {
    REPLAYSSM_CHECK(part.stack == 1, part.name);
    n_parameters_ += part.n_rows * part.cols;
    return model_.matrix(part.name, part.rows, part.cols);
  }

  GgufModel model_;
  std::vector<std::string> skipped_;
  int64_t n_parameters_ = 0;
  Buffer copy_;  // of the last rows
};

}  // namespace

std::unique_ptr<WeightFiles> open_gguf(const std::string& path) {
  return std::make_unique<GgufWeights>(path);
}

}  // namespace replayssm
