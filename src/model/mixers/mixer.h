// What every mixer has: its call, its scratch, and how it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/spec.h"
#include "model/weights.h"
#include "ops/matrix.h"
#include "ops/norm.h"

namespace replayssm {

// Hands out a mixer's scratch from one block, which all mixers share. With a null block it only
// counts: the same layout function gives the bytes at creation and the places in a pass.
class MixerScratch {
 public:
  static constexpr int64_t kAlignment = 256;

  explicit MixerScratch(void* block) : block_(static_cast<std::byte*>(block)) {}

  void* take(int64_t bytes) {
    void* at = block_ == nullptr ? nullptr : block_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  ops::Matrix matrix(DType dtype, int64_t rows, int64_t cols) {
    return {take(rows * cols * dtype_bytes(dtype)), dtype, rows, cols, cols};
  }
  int64_t used() const { return used_; }

 private:
  std::byte* block_;
  int64_t used_ = 0;
};

// A norm of the residual stream that the next mixer needs.
struct NextNorm {
  ops::NormWeight weight = {};
  float eps = 0;
  ops::Matrix y = {};  // data null: there is no next mixer
};

// in: the normed stream, activation dtype; the mixer's output is added to `residual`, fp32. A mixer
// that has also left `then` returns true.
struct MixerCall {
  ops::ConstMatrix in = {};
  ops::Matrix residual = {};
  std::span<float* const> angles;  // RoPE tables, as Model::ropes() counts
  NextNorm then = {};
  // Of the layers with state: which one this is.
  size_t n_recurrent = 0;
  size_t n_attention = 0;
};

}  // namespace replayssm
