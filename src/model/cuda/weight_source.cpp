#include "model/cuda/weight_source.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "core/cuda/device.h"
#include "core/error.h"
#include "model/formats/encode.h"
#include "model/fp8.h"
#include "model/model_folder.h"
#include "model/model_source.h"

namespace replayssm {
namespace {

using ops::cuda::WeightType;

class FileWeights final : public WeightSource {
 public:
  explicit FileWeights(const Model& model)
      : files_(open_weights(model.description(), model.path())),
        gguf_(is_gguf(model.path())),
        path_(model.path()) {}

  bool has(const std::string& name) const override { return files_->has(name); }

  WeightType type_of(const std::string& name) const override {
    switch (files_->format_of(name)) {
      case MatrixFormat::kFp8Tensor:
        return WeightType::kFp8Row;
      case MatrixFormat::kFp8Block:
        return WeightType::kFp8Block;
      case MatrixFormat::kFewBits:
        if (gguf_) break;
        fail("tensor '", name, "' is in few bits; the CUDA backend takes matrices in BF16 or FP8");
      case MatrixFormat::kWide:
        break;
    }
    return WeightType::kBF16;
  }

  void matrix(const MatrixPart& part, WeightType type, void* to, float* scales) override {
    if (type != WeightType::kBF16) return fp8_matrix(part, type, to, scales);
    const ops::ConstMatrix rows = files_->rows(part, DType::kBF16);
    if (gguf_ && files_->format_of(part.name) == MatrixFormat::kFewBits && !told_) {
      std::fprintf(stderr, "%s: on CUDA its matrices of few bits are widened to bf16\n",
                   path_.c_str());
      told_ = true;
    }
    if (gguf_ && rows.dtype != DType::kBF16) return rounded_matrix(rows, to);
    if (rows.dtype != DType::kBF16) {
      fail("tensor '", part.name, "' is ", dtype_name(rows.dtype),
           "; the CUDA backend takes matrices in BF16 or FP8");
    }
    upload(to, rows.data, 2 * part.n_rows * part.cols);
  }

  void vector(const std::string& name, int64_t n, VectorKind kind, int32_t width,
              float* to) override {
    const std::vector<float> values = files_->vector(name, n, kind, width);
    upload(to, values.data(), n * int64_t{sizeof(float)});
  }

  void finish() override {
    files_->check_tied_head();
    files_->finish();
  }

 private:
  // Converters keep small matrices of a bf16 model in F32.
  static void rounded_matrix(const ops::ConstMatrix& rows, void* to) {
    const int64_t n = rows.rows * rows.cols;
    const bool wide = rows.dtype == DType::kF32;
    std::vector<float> values(static_cast<size_t>(n));
    decode_blocks(wide ? BlockType::kF32 : BlockType::kF16,
                  static_cast<const std::byte*>(rows.data), n, values.data());
    std::vector<std::byte> halves(2 * values.size());
    encode_blocks(BlockType::kBF16, values.data(), n, halves.data());
    upload(to, halves.data(), 2 * n);
  }

  static void upload(void* to, const void* from, int64_t bytes) {
    check_cuda(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
               "copy of weights");
  }

  void fp8_matrix(const MatrixPart& part, WeightType type, void* to, float* scales) {
    const Fp8Matrix& fp8 = files_->fp8(part);
    upload(to, fp8.values->data + part.first * part.cols, part.n_rows * part.cols);
    std::vector<float> out(static_cast<size_t>(n_scales(type, part.n_rows, part.cols)));
    if (type == WeightType::kFp8Row) {
      REPLAYSSM_CHECK(!fp8.blocks, part.name);
      std::ranges::fill(out, fp8.scales[0]);
    } else {
      REPLAYSSM_CHECK(fp8.blocks && part.first % kFp8Block == 0, part.name);
      const auto n_cols = static_cast<size_t>((part.cols + kFp8Block - 1) / kFp8Block);
      const auto stride = static_cast<size_t>(ops::cuda::fp8_scale_stride(part.cols));
      const auto first = static_cast<size_t>(part.first / kFp8Block);
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t row = first + i / stride, col = i % stride;
        if (col < n_cols) out[i] = fp8.scales[row * n_cols + col];
      }
    }
    upload(scales, out.data(), std::ssize(out) * int64_t{sizeof(float)});
  }

  std::unique_ptr<WeightFiles> files_;
  bool gguf_;
  std::string path_;
  bool told_ = false;
};

}  // namespace

int64_t n_scales(WeightType type, int64_t n_out, int64_t n_in) {
  if (type == WeightType::kFp8Row) return n_out;
  return (n_out + kFp8Block - 1) / kFp8Block * ops::cuda::fp8_scale_stride(n_in);
}

std::unique_ptr<WeightSource> file_weights(const Model& model) {
  return std::make_unique<FileWeights>(model);
}

}  // namespace replayssm
