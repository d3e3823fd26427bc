#include "ops/elementwise.h"

#include "core/error.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/parallel.h"

namespace replayssm::ops {
namespace {

// Rows are cut into columns too, so that one long row still uses all threads.
constexpr int64_t kColumns = 2048;

void check_shapes(const ConstMatrix& a, const ConstMatrix& b) {
  REPLAYSSM_CHECK(a.rows == b.rows && a.cols == b.cols, a.rows, " x ", a.cols, " and ", b.rows,
                  " x ", b.cols);
}

void check_activation(DType dtype) {
  REPLAYSSM_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, dtype_name(dtype));
}

// body(row, first column, n columns).
template <typename Body>
void each_piece(const Context& context, int64_t rows, int64_t cols, const Body& body) {
  const int64_t pieces = (cols + kColumns - 1) / kColumns;
  parallel_chunks(context, rows * pieces, std::min(cols, kColumns),
                  [&](int64_t first, int64_t last, int) {
                    for (int64_t i = first; i < last; ++i) {
                      const int64_t col = i % pieces * kColumns;
                      body(i / pieces, col, std::min(kColumns, cols - col));
                    }
                  });
}

}  // namespace

void silu_mul(const Context& context, ConstMatrix gate, ConstMatrix up, Matrix y) {
  check_shapes(gate, up);
  check_shapes(gate, y);
  check_activation(gate.dtype);
  check_activation(up.dtype);
  check_activation(y.dtype);
  const VectorKernels& kernels = vector_kernels(context.isa());
  each_piece(context, y.rows, y.cols, [&](int64_t row, int64_t col, int64_t n) {
    kernels.silu_mul(span_at(gate, row, col), span_at(up, row, col), span_at(y, row, col), n);
  });
}

void relu2(const Context& context, ConstMatrix x, Matrix y) {
  check_shapes(x, y);
  check_activation(x.dtype);
  check_activation(y.dtype);
  const VectorKernels& kernels = vector_kernels(context.isa());
  each_piece(context, y.rows, y.cols, [&](int64_t row, int64_t col, int64_t n) {
    kernels.relu2(span_at(x, row, col), span_at(y, row, col), n);
  });
}

void sigmoid_mul(const Context& context, ConstHeads x, ConstHeads gate, Heads y) {
  REPLAYSSM_CHECK(x.tokens == gate.tokens && x.heads == gate.heads && x.dim == gate.dim &&
                      x.tokens == y.tokens && x.heads == y.heads && x.dim == y.dim,
                  "x ", x.heads, " x ", x.dim, ", gate ", gate.heads, " x ", gate.dim);
  check_activation(x.dtype);
  check_activation(gate.dtype);
  check_activation(y.dtype);
  const VectorKernels& kernels = vector_kernels(context.isa());
  parallel_chunks(context, x.tokens * x.heads, x.dim, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t token = i / x.heads;
      const int64_t head = i % x.heads;
      kernels.sigmoid_mul({x.at(token, head), x.dtype}, {gate.at(token, head), gate.dtype},
                          {y.at(token, head), y.dtype}, x.dim);
    }
  });
}

void residual_add(const Context& context, Matrix x, ConstMatrix y, float scale) {
  check_shapes(x, y);
  check_activation(y.dtype);
  REPLAYSSM_CHECK(x.dtype == DType::kF32, dtype_name(x.dtype));
  const VectorKernels& kernels = vector_kernels(context.isa());
  each_piece(context, x.rows, x.cols, [&](int64_t row, int64_t col, int64_t n) {
    kernels.add(static_cast<float*>(x.at(row, col)), span_at(y, row, col), scale, n);
  });
}

void copy(const Context& context, ConstMatrix x, Matrix y, float scale) {
  check_shapes(x, y);
  REPLAYSSM_CHECK(x.dtype != DType::kI8, dtype_name(x.dtype));
  check_activation(y.dtype);
  const VectorKernels& kernels = vector_kernels(context.isa());
  each_piece(context, x.rows, x.cols, [&](int64_t row, int64_t col, int64_t n) {
    kernels.copy(span_at(x, row, col), span_at(y, row, col), scale, n);
  });
}

void embed(const Context& context, ConstMatrix table, const int32_t* tokens, Matrix y,
           float scale) {
  REPLAYSSM_CHECK(table.cols == y.cols && table.dtype != DType::kI8, "table of ", table.cols,
                  ", y of ", y.cols);
  check_activation(y.dtype);
  const VectorKernels& kernels = vector_kernels(context.isa());
  parallel_chunks(context, y.rows, y.cols, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) {
      REPLAYSSM_CHECK(tokens[i] >= 0 && tokens[i] < table.rows, "token ", tokens[i], " of ",
                      table.rows);
      kernels.copy(span_at(table, tokens[i], 0), span_at(y, i, 0), scale, y.cols);
    }
  });
}

void embed(const Context& context, const Linear& table, const int32_t* tokens, Matrix y,
           float scale) {
  REPLAYSSM_CHECK(
      table.n_in() == y.cols && y.cols * 4 <= static_cast<int64_t>(Context::kScratchBytes),
      "table of ", table.n_in(), ", y of ", y.cols);
  check_activation(y.dtype);
  const VectorKernels& kernels = vector_kernels(context.isa());
  parallel_chunks(context, y.rows, 4 * y.cols, [&](int64_t first, int64_t last, int worker) {
    float* row = static_cast<float*>(context.scratch(worker));
    for (int64_t i = first; i < last; ++i) {
      table.unpack_row(tokens[i], row);
      kernels.copy({row, DType::kF32}, span_at(y, i, 0), scale, y.cols);
    }
  });
}

}  // namespace replayssm::ops
