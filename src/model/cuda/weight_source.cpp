#include "model/cuda/weight_source.h"

#include <cmath>
#include <unordered_set>
#include <vector>

#include "core/error.h"
#include "model/cuda/fill.h"

namespace replayssm {
namespace {

using ops::cuda::WeightType;

class NoWeights final : public WeightSource {
 public:
  void matrix(const std::string&, int64_t, int64_t, WeightType, void*) override {}
  void scales(int64_t, int64_t, float*) override {}
  void vector(const std::string&, int64_t, VectorKind, int32_t, float*) override {}
  void finish() override {}
};

class DummyWeights final : public WeightSource {
 public:
  explicit DummyWeights(const Stream& stream) : stream_(stream) {}

  // Of variance 1 / cols: a product keeps the variance of its input.
  void matrix(const std::string&, int64_t rows, int64_t cols, WeightType type, void* to) override {
    if (type != WeightType::kBF16) {
      cuda::fill_e4m3(to, rows * cols, key_++, stream_.get());
      return;
    }
    const float scale = std::sqrt(3.0f / static_cast<float>(cols));
    cuda::fill(to, DType::kBF16, rows * cols, key_++, 0, scale, stream_.get());
  }

  void scales(int64_t n, int64_t cols, float* to) override {
    const float scale = 1.0f / (cuda::kE4m3Deviation * std::sqrt(static_cast<float>(cols)));
    cuda::fill(to, DType::kF32, n, key_++, scale, 0, stream_.get());
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

  void matrix(const std::string& name, int64_t rows, int64_t cols, WeightType type,
              void* to) override {
    REPLAYSSM_CHECK(type == WeightType::kBF16, name, ": FP8 from files");
    const TensorView& tensor = take(name, {rows, cols});
    if (tensor.dtype != FileDType::kBF16) {
      fail(tensor.path, ": tensor '", name, "' is ", file_dtype_name(tensor.dtype),
           "; the CUDA backend takes matrices in BF16");
    }
    upload(to, tensor.data, tensor.bytes);
  }

  void scales(int64_t, int64_t, float*) override { REPLAYSSM_CHECK(false, "FP8 from files"); }

  void vector(const std::string& name, int64_t n, VectorKind kind, int32_t width,
              float* to) override {
    const bool conv = kind == VectorKind::kConvWeight;
    const TensorView& tensor =
        conv ? take(name, {n / width, 1, width}) : take(name, std::vector<int64_t>{n});
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
      bool known = taken_.contains(&tensor);
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

  const TensorView& take(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorView& tensor = files_.at(name);
    if (tensor.shape != shape) {
      TensorView expected;
      expected.shape = shape;
      fail(tensor.path, ": tensor '", name, "' has shape ", tensor.shape_text(),
           ", config.json needs ", expected.shape_text());
    }
    if (!taken_.insert(&tensor).second) {
      fail(tensor.path, ": tensor '", name, "' would be used twice");
    }
    return tensor;
  }

  std::vector<std::string> skipped_;
  TensorFiles files_;
  std::unordered_set<const TensorView*> taken_;
};

}  // namespace

std::unique_ptr<WeightSource> no_weights() { return std::make_unique<NoWeights>(); }

std::unique_ptr<WeightSource> dummy_weights(const Stream& stream) {
  return std::make_unique<DummyWeights>(stream);
}

std::unique_ptr<WeightSource> file_weights(const ModelDescription& model,
                                           const std::string& folder) {
  return std::make_unique<FileWeights>(model, folder);
}

}  // namespace replayssm
