#include "model/formats/published.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "replay/convert.h"

namespace replayssm {
namespace {

using ops::Codes;
using ops::GroupMin;
using ops::GroupScale;
using ops::QuantRow;

constexpr int64_t kFp8Block = 128;
constexpr std::array<int8_t, 16> kMinus8 = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr std::array<int8_t, 16> kPlain = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr std::array<int8_t, 16> kE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int kAwqOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // the nibble of output 0..7 of a word

using Shape = std::vector<int64_t>;

[[noreturn]] void refuse(const TensorView& tensor, const std::string& why) {
  fail(tensor.path, ": tensor '", tensor.name, "' ", why);
}

void expect(const TensorView& tensor, FileDType dtype, const Shape& shape) {
  if (tensor.dtype == dtype && tensor.shape == shape) return;
  TensorView want;
  want.shape = shape;
  refuse(tensor, concat("is ", file_dtype_name(tensor.dtype), " ", tensor.shape_text(),
                        "; needs to be ", file_dtype_name(dtype), " ", want.shape_text()));
}

uint8_t byte_at(const TensorView* tensor, int64_t i) {
  return static_cast<uint8_t>(tensor->data[i]);
}

uint32_t word_at(const TensorView* tensor, int64_t i) {
  uint32_t word;
  std::memcpy(&word, tensor->data + 4 * i, 4);
  return word;
}

int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

GroupScale scale_kind(const TensorView& scale) {
  switch (scale.dtype) {
    case FileDType::kF16:
      return GroupScale::kF16;
    case FileDType::kBF16:
      return GroupScale::kBF16;
    case FileDType::kF32:
      return GroupScale::kF32;
    default:
      refuse(scale, concat("is ", file_dtype_name(scale.dtype), "; scales must be F32, F16, BF16"));
  }
}

// Scales of 16 or 32 bits, all finite.
std::vector<float> finite_scales(const TensorView& tensor) {
  scale_kind(tensor);
  std::vector<float> out = read_fp32(tensor);
  for (const float scale : out) {
    if (!std::isfinite(scale)) refuse(tensor, "holds a scale that is not finite");
  }
  return out;
}

float one_scale(const TensorView& tensor) {
  const std::vector<float> scales = finite_scales(tensor);
  if (scales.size() != 1)
    refuse(tensor, concat("has shape ", tensor.shape_text(), ", must be one"));
  return scales[0];
}

// Any byte whose low seven bits are all set is E4M3's NaN.
void refuse_e4m3_nan(const TensorView& tensor) {
  bool nan = false;
  for (int64_t i = 0; i < tensor.bytes; ++i) nan |= (byte_at(&tensor, i) & 0x7f) == 0x7f;
  if (nan) refuse(tensor, "holds NaN");
}

// Inputs of a group where `cols` have `n` groups; 0 for one group that is the whole row.
int64_t group_size(const TensorView& scale, int64_t cols, int64_t n) {
  if (n == 1) return 0;
  for (int64_t group = 16; group < cols; group *= 2) {
    if (up(cols, group) == n) return group;
  }
  refuse(scale, concat("has ", n, " groups for ", cols,
                       " inputs; groups must be of 16, 32, 64 or a larger power of two"));
}

class Finder {
 public:
  Finder(const TensorFiles& files, const std::string& module, int64_t rows, int64_t cols,
         const QuantHints& hints)
      : files_(files), module_(module), rows_(rows), cols_(cols), hints_(hints) {
    out_.matrix.rows = rows;
    out_.matrix.cols = cols;
  }

  std::optional<StoredQuant> find() {
    if (const TensorView* packed = part("weight_packed")) {
      if (packed->dtype == FileDType::kI32) return pack_quantized(*packed);
      return fp4(*packed, true);
    }
    if (const TensorView* words = part("qweight")) {
      if (words->shape == Shape{cols_, rows_ / 8}) return awq(*words);
      return gptq(*words);
    }
    const TensorView* weight = part("weight");
    if (weight == nullptr) return std::nullopt;
    switch (weight->dtype) {
      case FileDType::kF8E4M3:
        return fp8(*weight);
      case FileDType::kI8:
        return int8(*weight);
      case FileDType::kU8:
        if (has("weight.absmax") || has("weight.quant_map")) {
          refuse(*weight, "is in bitsandbytes' 4 bits, which are not supported");
        }
        return fp4(*weight, false);
      case FileDType::kU32:
        refuse(*weight, "is in MLX's format, which is not supported");
      case FileDType::kF32:
      case FileDType::kF16:
      case FileDType::kBF16:
        return std::nullopt;
      default:
        refuse(*weight,
               concat("is ", file_dtype_name(weight->dtype),
                      "; weights must be F32, F16, BF16, FP8, NVFP4, MXFP4, INT8 or INT4"));
    }
  }

 private:
  bool has(const char* suffix) const { return files_.find(module_ + "." + suffix) != nullptr; }

  // A tensor of the module, noted as used; null if there is none.
  const TensorView* part(const char* suffix) {
    const TensorView* tensor = files_.find(module_ + "." + suffix);
    if (tensor != nullptr) out_.used.push_back(tensor);
    return tensor;
  }
  const TensorView& need(const char* suffix, const TensorView& beside) {
    const TensorView* tensor = part(suffix);
    if (tensor == nullptr) {
      refuse(beside, concat("is ", file_dtype_name(beside.dtype), ", but there is no '", module_,
                            ".", suffix, "'"));
    }
    return *tensor;
  }
  // What publishers leave beside a weight for runs with quantised activations.
  void skip(std::initializer_list<const char*> suffixes) {
    for (const char* suffix : suffixes) part(suffix);
  }

  ops::QuantFormat& format() { return out_.matrix.format; }

  StoredQuant done(const char* name) {
    out_.format = name;
    return std::move(out_);
  }

  // Sets the group where a row has `n_groups`. The format's groups have at most 128 inputs: returns
  // how many of them share one stored scale.
  int64_t set_groups(const TensorView& scale, int64_t n_groups) {
    const int64_t size = group_size(scale, cols_, n_groups);
    format().group = static_cast<int32_t>(size == 0 ? 128 : std::min<int64_t>(size, 128));
    return size == 0 ? up(cols_, 128) : std::max<int64_t>(1, size / 128);
  }

  StoredQuant fp8(const TensorView& weight) {
    expect(weight, FileDType::kF8E4M3, {rows_, cols_});
    refuse_e4m3_nan(weight);
    format().codes = Codes::kE4m3;
    const bool inverse = has("weight_scale_inv");
    const TensorView& scale = need(inverse ? "weight_scale_inv" : "weight_scale", weight);
    skip({"input_scale"});
    std::vector<float> scales = finite_scales(scale);
    const Shape blocks = {up(rows_, kFp8Block), up(cols_, kFp8Block)};
    const int64_t cols = cols_;
    if (scale.shape == Shape{rows_} || scale.shape == Shape{rows_, 1}) {
      format().output_scale = true;
      out_.matrix.read = [from = weight.data, cols, scales](int64_t row, QuantRow& to) {
        std::memcpy(to.codes, from + row * cols, static_cast<size_t>(cols));
        to.output_scale = scales[static_cast<size_t>(row)];
      };
      return done("FP8, a scale per output");
    }
    if (scales.size() == 1) {
      format().output_scale = true;
      out_.matrix.read = [from = weight.data, cols, scale = scales[0]](int64_t row, QuantRow& to) {
        std::memcpy(to.codes, from + row * cols, static_cast<size_t>(cols));
        to.output_scale = scale;
      };
      return done("FP8, one scale");
    }
    if (scale.shape != blocks) {
      refuse(scale, concat("has shape ", scale.shape_text(), "; one scale, one per output, or [",
                           blocks[0], ", ", blocks[1], "] is needed"));
    }
    format().scale = GroupScale::kF32;
    format().group = kFp8Block;
    out_.matrix.read = [from = weight.data, cols, scales, n = blocks[1]](int64_t row,
                                                                         QuantRow& to) {
      std::memcpy(to.codes, from + row * cols, static_cast<size_t>(cols));
      std::memcpy(to.scales, scales.data() + row / kFp8Block * n, static_cast<size_t>(n) * 4);
    };
    return done("FP8, a scale per block of 128 x 128");
  }

  StoredQuant int8(const TensorView& weight) {
    expect(weight, FileDType::kI8, {rows_, cols_});
    const TensorView& scale = need("weight_scale", weight);
    skip({"input_scale", "input_zero_point", "weight_zero_point"});
    if (scale.shape != Shape{rows_} && scale.shape != Shape{rows_, 1}) {
      refuse(scale, concat("has shape ", scale.shape_text(), "; one scale per output is needed"));
    }
    if (const TensorView* zero = files_.find(module_ + ".weight_zero_point")) {
      for (int64_t i = 0; i < zero->bytes; ++i) {
        if (byte_at(zero, i) != 0) refuse(*zero, "must be all zero: INT8 weights are symmetric");
      }
    }
    format().codes = Codes::kInt8;
    format().output_scale = true;
    out_.matrix.read = [from = weight.data, cols = cols_, scales = finite_scales(scale)](
                           int64_t row, QuantRow& to) {
      std::memcpy(to.codes, from + row * cols, static_cast<size_t>(cols));
      to.output_scale = scales[static_cast<size_t>(row)];
    };
    return done("INT8, a scale per output");
  }

  // NVFP4 and MXFP4: two codes a byte, the even input's low.
  StoredQuant fp4(const TensorView& weight, bool packed) {
    const TensorView& scale = need("weight_scale", weight);
    const bool mx = scale.dtype == FileDType::kU8;
    const int64_t group = mx ? 32 : 16;
    if (cols_ % group != 0) {
      refuse(weight, concat("has ", cols_, " inputs; FP4 needs a multiple of ", group));
    }
    expect(weight, FileDType::kU8, {rows_, cols_ / 2});
    expect(scale, mx ? FileDType::kU8 : FileDType::kF8E4M3, {rows_, cols_ / group});
    format().table = kE2m1;
    format().group = static_cast<int32_t>(group);
    format().scale = mx ? GroupScale::kE8m0 : GroupScale::kE4m3;
    format().output_scale = true;
    float factor = 1.0f;
    if (!mx) {
      refuse_e4m3_nan(scale);
      const TensorView& global = need(packed ? "weight_global_scale" : "weight_scale_2", weight);
      factor = one_scale(global);
      if (factor <= 0.0f) refuse(global, "must be above 0");
      if (packed) factor = 1.0f / factor;
    }
    skip({"input_scale", "input_global_scale"});
    out_.matrix.read = [from = &weight, scales = scale.data, cols = cols_, group, factor](
                           int64_t row, QuantRow& to) {
      for (int64_t i = 0; i < cols; i += 2) {
        const uint8_t byte = byte_at(from, (row * cols + i) / 2);
        to.codes[i] = byte & 15;
        to.codes[i + 1] = byte >> 4;
      }
      const int64_t n = cols / group;
      std::memcpy(to.scales, scales + row * n, static_cast<size_t>(n));
      to.output_scale = 0.5f * factor;
    };
    return done(mx ? "MXFP4" : "NVFP4");
  }

  // compressed-tensors: words along the inputs, low bits first, codes with 8 (or 128) added.
  StoredQuant pack_quantized(const TensorView& words) {
    const TensorView& scale = need("weight_scale", words);
    if (const TensorView* order = part("weight_g_idx")) check_order(*order, scale);
    skip({"weight_shape", "input_scale"});
    const bool bytes = words.shape == Shape{rows_, up(cols_, 4)};
    if (!bytes) expect(words, FileDType::kI32, {rows_, up(cols_, 8)});
    if (scale.shape.size() != 2 || scale.shape[0] != rows_ || scale.shape[1] < 1) {
      refuse(scale, concat("has shape ", scale.shape_text(), "; needs [", rows_, ", groups]"));
    }
    const int64_t n = scale.shape[1];
    const int64_t repeat = set_groups(scale, n);
    finite_scales(scale);
    format().scale = scale_kind(scale);
    format().codes = bytes ? Codes::kInt8 : Codes::kNibble;
    format().table = kMinus8;
    const TensorView* zeros = part("weight_zero_point");
    if (zeros != nullptr) {
      if (bytes) refuse(*zeros, "is not supported: INT8 weights are symmetric");
      expect(*zeros, FileDType::kI32, {up(rows_, 8), n});
      format().table = kPlain;
      format().min = GroupMin::kZero;
    }
    const int64_t cols = cols_, per_word = bytes ? 4 : 8, bits = bytes ? 8 : 4;
    const int64_t row_words = up(cols, per_word), groups = up(cols, format().group);
    const int64_t size = file_dtype_bytes(scale.dtype);
    out_.matrix.read = [=, from = &words, scales = scale.data](int64_t row, QuantRow& to) {
      for (int64_t i = 0; i < cols; ++i) {
        const uint32_t word = word_at(from, row * row_words + i / per_word);
        const uint32_t code = word >> (bits * (i % per_word));
        to.codes[i] = static_cast<uint8_t>(bytes ? (code & 255) - 128 : code & 15);
      }
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = row * n + g / repeat;
        std::memcpy(to.scales + g * size, scales + at * size, static_cast<size_t>(size));
        if (zeros == nullptr) continue;
        const uint32_t word = word_at(zeros, row / 8 * n + g / repeat);
        to.mins[g] = static_cast<std::byte>(word >> (4 * (row % 8)) & 15);
      }
    };
    return done(bytes ? "INT8 pack-quantized" : "INT4 pack-quantized");
  }

  // Groups must be runs of inputs.
  void check_order(const TensorView& order, const TensorView& scale) {
    expect(order, FileDType::kI32, {cols_});
    const bool by_output = scale.shape.size() == 2 && scale.shape[0] == rows_;
    const int64_t n = scale.shape.size() == 2 ? scale.shape[by_output ? 1 : 0] : 0;
    const int64_t size = group_size(scale, cols_, n);
    for (int64_t i = 0; i < cols_; ++i) {
      if (static_cast<int64_t>(word_at(&order, i)) != (size == 0 ? 0 : i / size)) {
        refuse(order, "reorders the inputs (act-order), which is not supported");
      }
    }
  }

  // Scales [groups, o] of GPTQ and AWQ. Returns how many groups there are.
  int64_t scales_by_group(const TensorView& scale, int64_t& repeat) {
    if (scale.shape.size() != 2 || scale.shape[1] != rows_ || scale.shape[0] < 1) {
      refuse(scale, concat("has shape ", scale.shape_text(), "; needs [groups, ", rows_, "]"));
    }
    repeat = set_groups(scale, scale.shape[0]);
    finite_scales(scale);
    format().scale = scale_kind(scale);
    return scale.shape[0];
  }

  StoredQuant gptq(const TensorView& words) {
    if (words.shape == Shape{up(cols_, 4), rows_}) {
      refuse(words, "is GPTQ in 8 bits, which is not supported; 4 are");
    }
    if (cols_ % 8 != 0 || rows_ % 8 != 0) refuse(words, "needs a multiple of 8 inputs and outputs");
    expect(words, FileDType::kI32, {cols_ / 8, rows_});
    const TensorView& scale = need("scales", words);
    int64_t repeat = 1;
    const int64_t n = scales_by_group(scale, repeat);
    if (const TensorView* order = part("g_idx")) check_order(*order, scale);
    const TensorView* zeros = part("qzeros");
    const bool symmetric = hints_.gptq_symmetric;
    format().table = symmetric ? kMinus8 : kPlain;
    if (!symmetric) {
      if (zeros == nullptr) refuse(words, concat("needs '", module_, ".qzeros'"));
      expect(*zeros, FileDType::kI32, {n, rows_ / 8});
      format().min = GroupMin::kZero;
    }
    const int64_t cols = cols_, rows = rows_, groups = up(cols, format().group);
    const int64_t size = file_dtype_bytes(scale.dtype), offset = hints_.gptq_zero_offset;
    out_.matrix.read = [=, from = &words, scales = scale.data](int64_t row, QuantRow& to) {
      for (int64_t i = 0; i < cols; ++i) {
        to.codes[i] = word_at(from, i / 8 * rows + row) >> (4 * (i % 8)) & 15;
      }
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = g / repeat;
        std::memcpy(to.scales + g * size, scales + (at * rows + row) * size,
                    static_cast<size_t>(size));
        if (symmetric) continue;
        const int64_t zero = word_at(zeros, at * (rows / 8) + row / 8) >> (4 * (row % 8)) & 15;
        to.mins[g] = static_cast<std::byte>(zero + offset);
      }
    };
    return done("INT4 GPTQ");
  }

  StoredQuant awq(const TensorView& words) {
    if (rows_ % 8 != 0) refuse(words, "needs a multiple of 8 outputs");
    expect(words, FileDType::kI32, {cols_, rows_ / 8});
    const TensorView& scale = need("scales", words);
    int64_t repeat = 1;
    const int64_t n = scales_by_group(scale, repeat);
    const TensorView& zeros = need("qzeros", words);
    expect(zeros, FileDType::kI32, {n, rows_ / 8});
    format().table = kPlain;
    format().min = GroupMin::kZero;
    const int64_t cols = cols_, rows = rows_, groups = up(cols, format().group);
    const int64_t size = file_dtype_bytes(scale.dtype);
    out_.matrix.read = [=, from = &words, zero = &zeros, scales = scale.data](int64_t row,
                                                                              QuantRow& to) {
      const int shift = 4 * kAwqOrder[row % 8];
      for (int64_t i = 0; i < cols; ++i) {
        to.codes[i] = word_at(from, i * (rows / 8) + row / 8) >> shift & 15;
      }
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = g / repeat;
        std::memcpy(to.scales + g * size, scales + (at * rows + row) * size,
                    static_cast<size_t>(size));
        to.mins[g] = static_cast<std::byte>(word_at(zero, at * (rows / 8) + row / 8) >> shift & 15);
      }
    };
    return done("INT4 AWQ");
  }

  const TensorFiles& files_;
  const std::string& module_;
  int64_t rows_, cols_;
  const QuantHints& hints_;
  StoredQuant out_;
};

}  // namespace

std::optional<StoredQuant> find_quantised(const TensorFiles& files, const std::string& module,
                                          int64_t rows, int64_t cols, const QuantHints& hints) {
  return Finder(files, module, rows, cols, hints).find();
}

}  // namespace replayssm
