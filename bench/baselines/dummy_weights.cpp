#include "bench/baselines/dummy_weights.h"

#include <cmath>

#include "bench/baselines/fill.h"
#include "core/cuda/device.h"

namespace replayssm::bench {
namespace {

using ops::cuda::WeightType;

class DummyWeights final : public WeightSource {
 public:
  explicit DummyWeights(WeightType type) : type_(type) {}

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
  Stream stream_;
  uint64_t key_ = 1;
};

}  // namespace

OpenWeights dummy_weights(WeightType type) {
  return [type](const Model&) { return std::make_unique<DummyWeights>(type); };
}

}  // namespace replayssm::bench
