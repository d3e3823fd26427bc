// Weights of few bits as Linear keeps them.
#pragma once

#include <cstdint>

#include "core/memory.h"
#include "core/thread_pool.h"
#include "ops/context.h"
#include "ops/cpu/linear_quant_kernels.h"
#include "ops/matrix.h"
#include "ops/quant.h"

namespace replayssm::ops {

struct QuantPanels {
  QuantFormat format;
  int64_t n_out = 0;
  int64_t n_in = 0;
  int64_t panel_bytes = 0;
  QuantTables tables{};
  Buffer weight;
  Buffer output_scale;  // [panels * 64] fp32, or empty

  QuantPanels(const QuantMatrix& matrix, ThreadPool* pool);
  static int64_t bytes_of(const QuantFormat& format, int64_t n_out, int64_t n_in);
  size_t bytes() const { return weight.bytes() + output_scale.bytes(); }
  void run(const Context& context, ConstMatrix x, Matrix y, const float* bias) const;
  void unpack_row(int64_t output, float* row) const;
};

}  // namespace replayssm::ops
