// Shared by the op tests: every backend that this machine runs, guarded tensors, error measures.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ops/context.h"
#include "ops/matrix.h"
#include "replay/convert.h"

namespace replayssm::ops {

struct Backend {
  Isa isa;
  bool bf16_dot;
  std::string name() const {
    return std::string(isa_name(isa)) + (bf16_dot ? " with bf16 dot" : "");
  }
};

inline std::vector<Backend> backends() {
  std::vector<Backend> list;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa_supported(isa)) list.push_back({isa, false});
  }
  if (bf16_dot_supported()) list.push_back({Isa::kAvx512, true});
  return list;
}

// Runs body(context, backend) for every backend on two threads.
template <typename Body>
void on_each_backend(const Body& body) {
  ThreadPool pool(2);
  for (const Backend& backend : backends()) {
    SCOPED_TRACE(backend.name());
    const Context context(pool, backend.isa, backend.bf16_dot);
    body(context, backend);
  }
}

// Rows of `cols` elements in a buffer that is NaN everywhere else: before, after and in the gaps.
// intact() says whether all of that is still untouched.
class Tensor {
 public:
  Tensor(DType dtype, int64_t rows, int64_t cols, int64_t gap = 3)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + gap) {
    bytes_.resize(static_cast<size_t>((2 * kGuard + rows * stride_) * dtype_bytes(dtype)), 0xff);
  }

  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t stride() const { return stride_; }
  void* data() { return bytes_.data() + kGuard * dtype_bytes(dtype_); }
  Matrix matrix() { return {data(), dtype_, rows_, cols_, stride_}; }
  Heads heads(int64_t n_heads) {
    const int64_t dim = cols_ / n_heads;
    return {data(), dtype_, rows_, n_heads, dim, stride_, dim};
  }

  float get(int64_t row, int64_t col) {
    const void* p = matrix().at(row, col);
    if (dtype_ == DType::kF32) {
      float value;
      std::memcpy(&value, p, sizeof(value));
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, p, sizeof(bits));
    return dtype_ == DType::kBF16 ? bf16_to_float(bits) : half_to_float(bits);
  }
  void set(int64_t row, int64_t col, float value) {
    void* p = matrix().at(row, col);
    if (dtype_ == DType::kF32) {
      std::memcpy(p, &value, sizeof(value));
      return;
    }
    const uint16_t bits = dtype_ == DType::kBF16 ? float_to_bf16(value) : float_to_half(value);
    std::memcpy(p, &bits, sizeof(bits));
  }
  void fill(uint32_t seed, float spread = 1.0f, float shift = 0.0f) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(shift, spread);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) set(r, c, normal(random));
    }
  }

  bool intact() {
    const int64_t element = dtype_bytes(dtype_);
    const int64_t total = static_cast<int64_t>(bytes_.size()) / element;
    for (int64_t i = 0; i < total; ++i) {
      const int64_t inside = i - kGuard;
      const bool used = inside >= 0 && inside < rows_ * stride_ && inside % stride_ < cols_;
      for (int64_t b = 0; b < element && !used; ++b) {
        if (bytes_[static_cast<size_t>(i * element + b)] != 0xff) return false;
      }
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 37;
  DType dtype_;
  int64_t rows_;
  int64_t cols_;
  int64_t stride_;
  std::vector<unsigned char> bytes_;
};

inline bool same_row(Tensor& a, int64_t row_a, Tensor& b, int64_t row_b) {
  return std::memcmp(a.matrix().at(row_a), b.matrix().at(row_b),
                     static_cast<size_t>(a.cols() * dtype_bytes(a.dtype()))) == 0;
}

// Sum of squared errors over sum of squares, against row-major `truth`.
inline double nmse(Tensor& got, const std::vector<double>& truth) {
  double error = 0.0;
  double power = 0.0;
  for (int64_t r = 0; r < got.rows(); ++r) {
    for (int64_t c = 0; c < got.cols(); ++c) {
      const double t = truth[static_cast<size_t>(r * got.cols() + c)];
      const double e = got.get(r, c) - t;
      if (!std::isfinite(e)) return INFINITY;
      error += e * e;
      power += t * t;
    }
  }
  return error / std::max(power, 1e-30);
}

// Starting bounds by the output's rounding: fp32 sums 1e-9, 16-bit outputs 1e-5.
inline double bound(DType out) { return out == DType::kF32 ? 1e-9 : 1e-5; }

inline std::vector<float> random_weights(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.5f, 0.5f);
  std::vector<float> w(static_cast<size_t>(n));
  for (float& x : w) x = normal(random);
  return w;
}

constexpr DType kActivations[] = {DType::kF32, DType::kBF16};

}  // namespace replayssm::ops
