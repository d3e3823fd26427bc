// y[r, o] = sum_i weight[o, i] x[r, i] (+ bias[o])
//
//   x [rows, n_in] fp32 or bf16     y [rows, n_out] fp32 or bf16; may not overlap x
//   weight [n_out, n_in]: kept as bf16 when all parts are bf16, else as fp32 (fp16 widens exactly)
//
// Every output is one sequential fp32 sum over i = 0, 1, ..., an fma a term (portable: multiply,
// then add); bf16 operands widen exactly. With Context::bf16_dot and bf16 on both sides the sum
// takes i in pairs by the native pair product instead, which flushes subnormals. The bias is added
// to the sum, then y is rounded once. Rows and threads never change the order.
//
// Weights of few bits (ops/quant.h) stay as stored: each group of inputs has its own sum, which its
// scale then multiplies; ops/cpu/linear_quant_body.h gives the order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/memory.h"
#include "ops/context.h"
#include "ops/matrix.h"
#include "ops/quant.h"

namespace replayssm::ops {

struct QuantPanels;

class Linear {
 public:
  static constexpr int64_t kPanel = 64;  // outputs packed together

  Linear() = default;
  // weight: fp32, bf16 or fp16, [n_out, n_in]. Several parts are stacked along the outputs (gate
  // and up, or q, k and v, in one pass over x). bias: [n_out] or null, copied. The sources may go.
  static Linear pack(ConstMatrix weight, const float* bias = nullptr);
  static Linear pack(std::span<const ConstMatrix> parts, const float* bias = nullptr);
  // The same of few bits; panels are packed on `pool` if there is one.
  static Linear pack(const QuantMatrix& weight, const float* bias = nullptr,
                     ThreadPool* pool = nullptr);
  // The parts' outputs one after another: for parts of different formats.
  static Linear stack(std::vector<Linear> parts);

  // The same in pieces: all outputs are packed by pack_rows() before the first run. dtype: bf16 if
  // all parts are, else fp32.
  Linear(int64_t n_out, int64_t n_in, DType dtype);
  // Rows become outputs [output, output + rows.rows).
  void pack_rows(int64_t output, ConstMatrix rows);
  // Of such a weight.
  static int64_t packed_bytes(int64_t n_out, int64_t n_in, DType dtype);
  static int64_t packed_bytes(int64_t n_out, int64_t n_in, const QuantFormat& format);

  int64_t n_out() const { return n_out_; }
  int64_t n_in() const { return n_in_; }
  DType dtype() const { return dtype_; }  // of few bits: kBF16, what they are multiplied as
  size_t bytes() const;
  bool empty() const { return n_out_ == 0; }

  void run(const Context& context, ConstMatrix x, Matrix y) const;

  // weight[output, :] widened, exactly as packed: the embedding of a tied table.
  void unpack_row(int64_t output, float* row) const;

 private:
  int64_t n_out_ = 0;
  int64_t n_in_ = 0;
  DType dtype_ = DType::kF32;
  // fp32: [panel][n_in][64]; bf16: [panel][ceil(n_in / 2)][64][2]; tails are zero.
  Buffer weight_;
  Buffer bias_;  // [panels * 64] fp32, or empty
  std::shared_ptr<const QuantPanels> quant_;
  std::vector<Linear> parts_;  // if stacked, and then nothing else
};

}  // namespace replayssm::ops
