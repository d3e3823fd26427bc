#include "model/fp8.h"

#include <array>
#include <cmath>
#include <string>

#include "core/error.h"
#include "replay/convert.h"

namespace replayssm {
namespace {

std::array<float, 256> value_table() {
  std::array<float, 256> out;
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    float value = std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + 8),
                             (exponent == 0 ? 1 : exponent) - 10);
    if ((bits & 127) == 127) value = NAN;  // there is no infinity
    out[static_cast<size_t>(bits)] = bits < 128 ? value : -value;
  }
  return out;
}

const std::array<float, 256>& values_of_bits() {
  static const std::array<float, 256> table = value_table();
  return table;
}

std::vector<float> read_scales(const TensorView& tensor, int64_t count) {
  const bool known = tensor.dtype == FileDType::kF32 || tensor.dtype == FileDType::kBF16;
  if (!known || tensor.n_elements() != count) {
    fail(tensor.path, ": tensor '", tensor.name, "' is ", file_dtype_name(tensor.dtype), " ",
         tensor.shape_text(), "; scales must be F32 or BF16, here ", count, " of them");
  }
  std::vector<float> out = read_fp32(tensor);
  for (const float scale : out) {
    if (std::isfinite(scale) && scale >= 0.0f) continue;
    fail(tensor.path, ": tensor '", tensor.name, "' holds the scale ", scale);
  }
  return out;
}

}  // namespace

float e4m3_to_float(uint8_t bits) { return values_of_bits()[bits]; }

Fp8Matrix read_fp8(const TensorFiles& files, const TensorView& values) {
  const std::string& name = values.name;
  if (values.dtype != FileDType::kF8E4M3 || values.shape.size() != 2) {
    fail(values.path, ": tensor '", name, "' is ", file_dtype_name(values.dtype), " ",
         values.shape_text(), "; FP8 weights must be F8_E4M3 matrices");
  }
  Fp8Matrix out;
  out.values = &values;
  const TensorView* scale = files.find(name + "_scale_inv");
  if (scale != nullptr) {
    const std::vector<int64_t> grid = {(out.rows() + kFp8Block - 1) / kFp8Block,
                                       (out.cols() + kFp8Block - 1) / kFp8Block};
    if (scale->shape != grid) {
      fail(scale->path, ": tensor '", scale->name, "' has shape ", scale->shape_text(),
           "; blocks of 128 x 128 need [", grid[0], ", ", grid[1], "]");
    }
    out.blocks = true;
    out.scales = read_scales(*scale, grid[0] * grid[1]);
    out.beside.push_back(scale);
    return out;
  }
  scale = files.find(name + "_scale");
  if (scale == nullptr) {
    fail(values.path, ": tensor '", name, "' is F8_E4M3, but has neither '", name,
         "_scale_inv' nor '", name, "_scale' beside it");
  }
  out.scales = read_scales(*scale, 1);
  out.beside.push_back(scale);
  constexpr std::string_view kWeight = "weight";
  if (name.ends_with(kWeight)) {
    const std::string stem = name.substr(0, name.size() - kWeight.size());
    if (const TensorView* input = files.find(stem + "input_scale")) {
      out.input_scale = read_scales(*input, 1)[0];
      out.beside.push_back(input);
    }
  }
  return out;
}

void widen_fp8(const Fp8Matrix& matrix, DType to, void* out) {
  REPLAYSSM_CHECK(to == DType::kF32 || to == DType::kBF16, dtype_name(to));
  const int64_t rows = matrix.rows(), cols = matrix.cols();
  const int64_t block_cols = (cols + kFp8Block - 1) / kFp8Block;
  const auto& table = values_of_bits();
  const auto* from = reinterpret_cast<const uint8_t*>(matrix.values->data);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t block = row / kFp8Block * block_cols + col / kFp8Block;
      const float scale = matrix.scales[static_cast<size_t>(matrix.blocks ? block : 0)];
      const int64_t at = row * cols + col;
      const float value = table[from[at]] * scale;
      if (to == DType::kF32) {
        static_cast<float*>(out)[at] = value;
      } else {
        static_cast<uint16_t*>(out)[at] = float_to_bf16(value);
      }
    }
  }
}

}  // namespace replayssm
