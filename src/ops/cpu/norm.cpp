#include "ops/norm.h"

#include "core/error.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/parallel.h"

namespace replayssm::ops {
namespace {

void check_activation(DType dtype) {
  REPLAYSSM_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, dtype_name(dtype));
}

}  // namespace

void rms_norm(const Context& context, ConstMatrix x, NormWeight weight, float eps, Matrix y) {
  REPLAYSSM_CHECK(x.rows == y.rows && x.cols == y.cols, "x ", x.rows, " x ", x.cols, ", y ", y.rows,
                  " x ", y.cols);
  check_activation(x.dtype);
  check_activation(y.dtype);
  const NormArgs args{x.cols, eps, weight.data, weight.zero_centred};
  const VectorKernels& kernels = vector_kernels(context.isa());
  parallel_chunks(context, x.rows, x.cols, [&](int64_t first, int64_t last, int) {
    for (int64_t row = first; row < last; ++row) {
      kernels.rms_norm(span_at(x, row, 0), span_at(y, row, 0), args);
    }
  });
}

void head_norm(const Context& context, Heads x, NormWeight weight, float eps) {
  check_activation(x.dtype);
  const NormArgs args{x.dim, eps, weight.data, weight.zero_centred};
  const VectorKernels& kernels = vector_kernels(context.isa());
  parallel_chunks(context, x.tokens * x.heads, x.dim, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) {
      void* head = x.at(i / x.heads, i % x.heads);
      kernels.rms_norm({head, x.dtype}, {head, x.dtype}, args);
    }
  });
}

void gated_norm(const Context& context, const GatedNorm& norm, ConstMatrix y, ConstMatrix z,
                Matrix out) {
  REPLAYSSM_CHECK(y.rows == z.rows && y.cols == z.cols && y.rows == out.rows && y.cols == out.cols,
                  "y ", y.rows, " x ", y.cols, ", z ", z.rows, " x ", z.cols, ", out ", out.rows,
                  " x ", out.cols);
  check_activation(y.dtype);
  check_activation(z.dtype);
  check_activation(out.dtype);
  const int64_t size = norm.group_size;
  REPLAYSSM_CHECK(size > 0 && y.cols % size == 0, y.cols, " columns in groups of ", size);
  REPLAYSSM_CHECK(size * 4 <= static_cast<int64_t>(Context::kScratchBytes), "group of ", size);
  const int64_t n_groups = y.cols / size;
  REPLAYSSM_CHECK(norm.tile == 0 || n_groups % norm.tile == 0, n_groups, " groups, tile ",
                  norm.tile);
  const VectorKernels& kernels = vector_kernels(context.isa());
  parallel_chunks(context, y.rows * n_groups, size, [&](int64_t first, int64_t last, int worker) {
    GateArgs gate;
    gate.sigmoid = norm.gate == GateFunction::kSigmoid;
    gate.gate_first = norm.order == GateOrder::kGateThenNorm;
    gate.normalise = norm.order != GateOrder::kGateOnly;
    gate.work = static_cast<float*>(context.scratch(worker));
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / n_groups;
      const int64_t col = i % n_groups * size;
      NormArgs args{size, norm.eps, norm.weight.data, norm.weight.zero_centred};
      if (args.weight != nullptr && !norm.shared_weight) args.weight += col;
      const int64_t to = norm.place_of(i % n_groups, n_groups) * size;
      kernels.gated_norm(span_at(y, row, col), span_at(z, row, col), span_at(out, row, to), args,
                         gate);
    }
  });
}

}  // namespace replayssm::ops
