#include "ops/rope.h"

#include <cmath>

#include "core/error.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/parallel.h"

namespace replayssm::ops {
namespace {

// A cos and a sin in double, in elements' worth of work.
constexpr int64_t kAngleWork = 64;

}  // namespace

Rope::Rope(int32_t rotary_dims, double theta, const RopeScaling& scaling)
    : frequencies_(rope_frequencies(rotary_dims, theta, scaling)),
      factor_(scaling.attention_factor) {}

void Rope::angles(const Context& context, const int64_t* positions, int64_t n_tokens,
                  float* table) const {
  const int64_t n_pairs = static_cast<int64_t>(frequencies_.size());
  parallel_chunks(context, n_tokens, kAngleWork * n_pairs, [&](int64_t first, int64_t last, int) {
    for (int64_t t = first; t < last; ++t) {
      float* row = table + t * 2 * n_pairs;
      for (int64_t i = 0; i < n_pairs; ++i) {
        const double angle = static_cast<double>(positions[t]) * frequencies_[i];
        row[i] = static_cast<float>(factor_ * std::cos(angle));
        row[n_pairs + i] = static_cast<float>(factor_ * std::sin(angle));
      }
    }
  });
}

void Rope::apply(const Context& context, const float* table, Heads x) const {
  const int64_t n_pairs = static_cast<int64_t>(frequencies_.size());
  REPLAYSSM_CHECK(2 * n_pairs <= x.dim, 2 * n_pairs, " rotary dims of ", x.dim);
  REPLAYSSM_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBF16, dtype_name(x.dtype));
  const VectorKernels& kernels = vector_kernels(context.isa());
  parallel_chunks(context, x.tokens * x.heads, 2 * n_pairs, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t token = i / x.heads;
      const float* row = table + token * 2 * n_pairs;
      kernels.rope({x.at(token, i % x.heads), x.dtype}, row, row + n_pairs, n_pairs);
    }
  });
}

}  // namespace replayssm::ops
