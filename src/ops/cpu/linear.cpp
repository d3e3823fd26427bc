#include "ops/linear.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/linear_quant.h"
#include "replay/convert.h"

namespace replayssm::ops {
namespace {

// Below this many products one thread is done before a second one has started.
constexpr int64_t kForkProducts = int64_t{1} << 16;

static_assert(kLinearScratchBytes <= static_cast<int64_t>(Context::kScratchBytes));

float element(const ConstMatrix& m, int64_t row, int64_t col) {
  const void* p = m.at(row, col);
  if (m.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return m.dtype == DType::kBF16 ? bf16_to_float(bits) : half_to_float(bits);
}

PanelFunction function_for(const Context& context, bool weight_bf16, bool x_bf16) {
  switch (context.isa()) {
    case Isa::kAvx512:
      return context.bf16_dot() && weight_bf16 && x_bf16 ? linear_avx512bf16 : linear_avx512;
    case Isa::kAvx2:
      return linear_avx2;
    default:
      return linear_portable;
  }
}

bool is_activation(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

}  // namespace

Linear Linear::pack(ConstMatrix weight, const float* bias) {
  return pack(std::span<const ConstMatrix>(&weight, 1), bias);
}

Linear Linear::pack(std::span<const ConstMatrix> parts, const float* bias) {
  REPLAYSSM_CHECK(!parts.empty(), "no weight");
  int64_t n_out = 0;
  bool bf16 = true;
  for (const ConstMatrix& part : parts) {
    n_out += part.rows;
    bf16 = bf16 && part.dtype == DType::kBF16;
  }
  Linear linear(n_out, parts[0].cols, bf16 ? DType::kBF16 : DType::kF32);
  int64_t output = 0;
  for (const ConstMatrix& part : parts) {
    linear.pack_rows(output, part);
    output += part.rows;
  }
  if (bias != nullptr) {
    const int64_t n_panels = (n_out + kPanel - 1) / kPanel;
    linear.bias_ = Buffer(static_cast<size_t>(n_panels * kPanel) * 4);
    std::memcpy(linear.bias_.data(), bias, static_cast<size_t>(n_out) * 4);
  }
  return linear;
}

int64_t Linear::packed_bytes(int64_t n_out, int64_t n_in, DType dtype) {
  const int64_t n_panels = (n_out + kPanel - 1) / kPanel;
  return n_panels * (dtype == DType::kBF16 ? (n_in + 1) / 2 : n_in) * kPanel * 4;
}

int64_t Linear::packed_bytes(int64_t n_out, int64_t n_in, const QuantFormat& format) {
  return QuantPanels::bytes_of(format, n_out, n_in);
}

Linear::Linear(int64_t n_out, int64_t n_in, DType dtype)
    : n_out_(n_out),
      n_in_(n_in),
      dtype_(dtype),
      weight_(static_cast<size_t>(packed_bytes(n_out, n_in, dtype))) {
  REPLAYSSM_CHECK(n_out > 0 && n_in > 0 && (dtype == DType::kBF16 || dtype == DType::kF32), n_out,
                  " x ", n_in, " ", dtype_name(dtype));
}

void Linear::pack_rows(int64_t output, ConstMatrix rows) {
  const bool bf16 = dtype_ == DType::kBF16;
  REPLAYSSM_CHECK(rows.cols == n_in_ && output >= 0 && output + rows.rows <= n_out_ &&
                      rows.dtype != DType::kI8 && (!bf16 || rows.dtype == DType::kBF16),
                  "rows of ", rows.rows, " x ", rows.cols, " ", dtype_name(rows.dtype));
  const int64_t n_steps = bf16 ? (n_in_ + 1) / 2 : n_in_;
  for (int64_t row = 0; row < rows.rows; ++row, ++output) {
    const int64_t base = output / kPanel * n_steps * kPanel + output % kPanel;
    if (bf16) {
      const char* from = static_cast<const char*>(rows.at(row));
      uint16_t* to = weight_.as<uint16_t>() + base * 2;
      for (int64_t i = 0; i < n_in_; ++i) {
        std::memcpy(to + i / 2 * kPanel * 2 + i % 2, from + 2 * i, 2);
      }
    } else {
      float* to = weight_.as<float>() + base;
      for (int64_t i = 0; i < n_in_; ++i) to[i * kPanel] = element(rows, row, i);
    }
  }
}

Linear Linear::pack(const QuantMatrix& weight, const float* bias, ThreadPool* pool) {
  Linear linear;
  linear.n_out_ = weight.rows;
  linear.n_in_ = weight.cols;
  linear.dtype_ = DType::kBF16;
  linear.quant_ = std::make_shared<const QuantPanels>(weight, pool);
  if (bias != nullptr) {
    linear.bias_ = Buffer(static_cast<size_t>((weight.rows + kPanel - 1) / kPanel * kPanel) * 4);
    std::memcpy(linear.bias_.data(), bias, static_cast<size_t>(weight.rows) * 4);
  }
  return linear;
}

Linear Linear::stack(std::vector<Linear> parts) {
  REPLAYSSM_CHECK(!parts.empty(), "no weight");
  Linear linear;
  linear.n_in_ = parts[0].n_in_;
  linear.dtype_ = parts[0].dtype_;
  for (const Linear& part : parts) {
    REPLAYSSM_CHECK(part.n_in_ == linear.n_in_, part.n_in_, " and ", linear.n_in_);
    linear.n_out_ += part.n_out_;
    if (part.dtype_ != DType::kBF16) linear.dtype_ = DType::kF32;
  }
  linear.parts_ = std::move(parts);
  return linear;
}

size_t Linear::bytes() const {
  size_t bytes = weight_.bytes() + bias_.bytes();
  if (quant_ != nullptr) bytes += quant_->bytes();
  for (const Linear& part : parts_) bytes += part.bytes();
  return bytes;
}

void Linear::unpack_row(int64_t output, float* row) const {
  REPLAYSSM_CHECK(output >= 0 && output < n_out_, output, " of ", n_out_);
  for (const Linear& part : parts_) {
    if (output < part.n_out_) return part.unpack_row(output, row);
    output -= part.n_out_;
  }
  if (quant_ != nullptr) return quant_->unpack_row(output, row);
  const bool bf16 = dtype_ == DType::kBF16;
  const int64_t n_steps = bf16 ? (n_in_ + 1) / 2 : n_in_;
  const int64_t base = output / kPanel * n_steps * kPanel + output % kPanel;
  if (bf16) {
    const uint16_t* from = weight_.as<uint16_t>() + base * 2;
    for (int64_t i = 0; i < n_in_; ++i) {
      row[i] = bf16_to_float(from[i / 2 * kPanel * 2 + i % 2]);
    }
  } else {
    const float* from = weight_.as<float>() + base;
    for (int64_t i = 0; i < n_in_; ++i) row[i] = from[i * kPanel];
  }
}

void Linear::run(const Context& context, ConstMatrix x, Matrix y) const {
  REPLAYSSM_CHECK(x.cols == n_in_ && y.cols == n_out_ && x.rows == y.rows, "x ", x.rows, " x ",
                  x.cols, ", y ", y.rows, " x ", y.cols, ", weight ", n_out_, " x ", n_in_);
  REPLAYSSM_CHECK(is_activation(x.dtype) && is_activation(y.dtype), dtype_name(x.dtype), " -> ",
                  dtype_name(y.dtype));
  if (x.rows == 0) return;
  int64_t first_output = 0;
  for (const Linear& part : parts_) {
    part.run(context, x, y.slice_cols(first_output, part.n_out_));
    first_output += part.n_out_;
  }
  if (!parts_.empty()) return;
  if (quant_ != nullptr) {
    return quant_->run(context, x, y, bias_.bytes() == 0 ? nullptr : bias_.as<float>());
  }
  const bool bf16 = dtype_ == DType::kBF16;
  const PanelFunction function = function_for(context, bf16, x.dtype == DType::kBF16);
  const int64_t n_panels = (n_out_ + kPanel - 1) / kPanel;
  const int64_t panel_bytes = (bf16 ? (n_in_ + 1) / 2 : n_in_) * kPanel * 4;

  // Tasks: groups of rows times ranges of panels. A range is several panels where the weight only
  // streams, one where it is reused.
  const int64_t n_workers = context.pool().size();
  const bool streams = x.rows <= 6;
  int64_t n_groups = (x.rows + kMaxPanelRows - 1) / kMaxPanelRows;
  int64_t n_ranges = streams ? std::min(n_panels, 8 * n_workers) : n_panels;
  if (!streams) {
    n_groups = std::max(n_groups, std::min((x.rows + 23) / 24, 2 * n_workers / n_panels));
  }
  if (n_workers == 1 || x.rows * n_in_ * n_out_ < kForkProducts) n_ranges = 1;

  const auto task = [&](int64_t index, int worker) {
    const int64_t group = index / n_ranges;
    const int64_t range = index % n_ranges;
    const int64_t row = x.rows * group / n_groups;
    const int64_t first = n_panels * range / n_ranges;
    const int64_t last = n_panels * (range + 1) / n_ranges;
    PanelArgs args;
    args.weight = static_cast<const char*>(weight_.data()) + first * panel_bytes;
    args.weight_bf16 = bf16;
    args.n_in = n_in_;
    args.n_out = std::min(n_out_, last * kPanel) - first * kPanel;
    args.bias = bias_.bytes() == 0 ? nullptr : bias_.as<float>() + first * kPanel;
    args.x = x.at(row);
    args.x_bf16 = x.dtype == DType::kBF16;
    args.x_stride = x.stride;
    args.n_rows = x.rows * (group + 1) / n_groups - row;
    args.y = y.at(row, first * kPanel);
    args.y_bf16 = y.dtype == DType::kBF16;
    args.y_stride = y.stride;
    args.scratch = context.scratch(worker);
    function(args);
  };
  context.pool().parallel_for(n_groups * n_ranges, task);
}

}  // namespace replayssm::ops
