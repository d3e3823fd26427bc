#include "model/cuda/weight_source.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "model/cuda/fill.h"
#include "model/fp8.h"

namespace replayssm {
namespace {

using ops::cuda::WeightType;

class DummyWeights final : public WeightSource {
 public:
  DummyWeights(WeightType type, const Stream& stream) : type_(type), stream_(stream) {}

  bool has(const std::string&) const override { return false; }
  WeightType type_of(const std::string&) const override { return type_; }

  // Of variance 1 / cols: a product keeps the variance of its input.
  void matrix(const MatrixPart& part, WeightType type, void* to, float* scales) override {
    const int64_t n = part.n_rows * part.cols;
    if (type != WeightType::kBF16) {
      cuda::fill_e4m3(to, n, key_++, stream_.get());
      const float scale = 1.0f / (cuda::kE4m3Deviation * std::sqrt(static_cast<float>(part.cols)));
      cuda::fill(scales, DType::kF32, n_scales(type, part.n_rows, part.cols), key_++, scale, 0,
                 stream_.get());
      return;
    }
    const float scale = std::sqrt(3.0f / static_cast<float>(part.cols));
    cuda::fill(to, DType::kBF16, n, key_++, 0, scale, stream_.get());
  }

  void vector(const std::string&, int64_t n, VectorKind kind, int32_t, float* to) override {
    const auto [mean, scale] = range_of(kind);
    cuda::fill(to, DType::kF32, n, key_++, mean, scale, stream_.get());
  }

  void finish() override {
    check_cuda(cudaGetLastError(), "filling of weights");
    stream_.wait();
  }

 private:
  struct Range {
    float mean, scale;
  };
  static Range range_of(VectorKind kind) {
    switch (kind) {
      case VectorKind::kNorm:
      case VectorKind::kSkip:
        return {1, 0.1f};
      case VectorKind::kConvWeight:
        return {0, 0.8f};
      case VectorKind::kALog:
        return {0, 0.5f};
      case VectorKind::kDtBias:
        return {-3, 0.5f};
      case VectorKind::kZeroCentredNorm:
      case VectorKind::kBias:
        break;
    }
    return {0, 0.1f};
  }

  WeightType type_;
  const Stream& stream_;
  uint64_t key_ = 1;
};

class FileWeights final : public WeightSource {
 public:
  FileWeights(const ModelDescription& model, const std::string& folder)
      : skipped_(model.names.skipped_prefixes), files_(TensorFiles::open_folder(folder)) {
    // A tied model's file may carry the head too; the CPU's loader compares it.
    if (model.spec.tied) skipped_.push_back(model.names.lm_head);
  }

  bool has(const std::string& name) const override { return files_.find(name) != nullptr; }

  WeightType type_of(const std::string& name) const override {
    const TensorView& tensor = files_.at(name);
    if (tensor.dtype != FileDType::kF8E4M3) return WeightType::kBF16;
    return has(name + "_scale_inv") ? WeightType::kFp8Block : WeightType::kFp8Row;
  }

  void matrix(const MatrixPart& part, WeightType type, void* to, float* scales) override {
    const std::vector<int64_t> shape =
        part.stack == 1 ? std::vector<int64_t>{part.rows, part.cols}
                        : std::vector<int64_t>{part.stack, part.rows / part.stack, part.cols};
    const TensorView& tensor = find(part.name, shape);
    mark(tensor, part.n_rows * part.cols);
    const int64_t begin = part.first * part.cols, n = part.n_rows * part.cols;
    if (tensor.dtype == FileDType::kF8E4M3) {
      fp8_matrix(read_fp8(files_, tensor), part, type, to, scales);
    } else if (tensor.dtype == FileDType::kBF16) {
      upload(to, tensor.data + 2 * begin, 2 * n);
    } else {
      fail(tensor.path, ": tensor '", part.name, "' is ", file_dtype_name(tensor.dtype),
           "; the CUDA backend takes matrices in BF16 or FP8");
    }
  }

  void vector(const std::string& name, int64_t n, VectorKind kind, int32_t width,
              float* to) override {
    const bool conv = kind == VectorKind::kConvWeight;
    const TensorView& tensor =
        conv ? find(name, {n / width, 1, width}) : find(name, std::vector<int64_t>{n});
    mark(tensor, n);
    std::vector<float> values = read_fp32(tensor);
    if (conv) {
      const std::vector<float> by_channel = values;
      const int64_t channels = n / width;
      for (int64_t i = 0; i < n; ++i) {
        values[static_cast<size_t>(i % width * channels + i / width)] =
            by_channel[static_cast<size_t>(i)];
      }
    }
    upload(to, values.data(), n * int64_t{sizeof(float)});
  }

  void finish() override {
    for (const TensorView& tensor : files_.tensors()) {
      bool known = taken_.contains(&tensor) || tensor.name.ends_with("k_proj.k_scale") ||
                   tensor.name.ends_with("v_proj.v_scale");
      for (const auto& prefix : skipped_) known = known || tensor.name.starts_with(prefix);
      if (!known) {
        fail(tensor.path, ": tensor '", tensor.name, "' has no place in the model of config.json");
      }
    }
  }

 private:
  static void upload(void* to, const void* from, int64_t bytes) {
    check_cuda(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
               "copy of weights");
  }

  void fp8_matrix(const Fp8Matrix& fp8, const MatrixPart& part, WeightType type, void* to,
                  float* scales) {
    for (const TensorView* beside : fp8.beside) taken_.try_emplace(beside, 0);
    const int64_t begin = part.first * part.cols, n = part.n_rows * part.cols;
    if (type == WeightType::kBF16) {
      std::vector<uint16_t> wide(static_cast<size_t>(part.rows * part.cols));
      widen_fp8(fp8, DType::kBF16, wide.data());
      return upload(to, wide.data() + begin, 2 * n);
    }
    upload(to, fp8.values->data + begin, n);
    std::vector<float> out(static_cast<size_t>(n_scales(type, part.n_rows, part.cols)));
    if (type == WeightType::kFp8Row) {
      REPLAYSSM_CHECK(!fp8.blocks, part.name);
      std::fill(out.begin(), out.end(), fp8.scales[0]);
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

  const TensorView& find(const std::string& name, const std::vector<int64_t>& shape) const {
    const TensorView& tensor = files_.at(name);
    if (tensor.shape != shape) {
      TensorView expected;
      expected.shape = shape;
      fail(tensor.path, ": tensor '", name, "' has shape ", tensor.shape_text(),
           ", config.json needs ", expected.shape_text());
    }
    return tensor;
  }
  // Parts of a tensor are taken one by one, each once.
  void mark(const TensorView& tensor, int64_t n) {
    int64_t& taken = taken_[&tensor];
    taken += n;
    if (taken > tensor.n_elements()) {
      fail(tensor.path, ": tensor '", tensor.name, "' would be used twice");
    }
  }

  std::vector<std::string> skipped_;
  TensorFiles files_;
  std::unordered_map<const TensorView*, int64_t> taken_;  // elements
};

}  // namespace

int64_t n_scales(WeightType type, int64_t n_out, int64_t n_in) {
  if (type == WeightType::kFp8Row) return n_out;
  return (n_out + kFp8Block - 1) / kFp8Block * ops::cuda::fp8_scale_stride(n_in);
}

std::unique_ptr<WeightSource> dummy_weights(WeightType type, const Stream& stream) {
  return std::make_unique<DummyWeights>(type, stream);
}

std::unique_ptr<WeightSource> file_weights(const ModelDescription& model,
                                           const std::string& folder) {
  return std::make_unique<FileWeights>(model, folder);
}

}  // namespace replayssm
