#include "model/quantization.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "core/error.h"
#include "model/config.h"

namespace replayssm {
namespace {

constexpr int64_t kFp8BlockEdge = 128;
constexpr int64_t kNvfp4Group = 16;
constexpr int64_t kMxfp4Group = 32;

struct FormatRow {
  WeightFormat format;
  const char* name;
  bool served;
};
constexpr FormatRow kFormats[] = {
    {WeightFormat::kFloat, "16- or 32-bit floats", true},
    {WeightFormat::kFp8Tensor, "FP8 with one scale per tensor", true},
    {WeightFormat::kFp8Channel, "FP8 with one scale per output channel", true},
    {WeightFormat::kFp8Block, "FP8 in blocks of 128 x 128", true},
    {WeightFormat::kInt8Channel, "INT8 with one scale per output channel", true},
    {WeightFormat::kNvfp4, "NVFP4 (modelopt)", true},
    {WeightFormat::kNvfp4Packed, "NVFP4 (compressed-tensors)", true},
    {WeightFormat::kMxfp4, "MXFP4", true},
    {WeightFormat::kPacked, "packed integers (compressed-tensors)", true},
    {WeightFormat::kGptq, "GPTQ", true},
    {WeightFormat::kGptqOrdered, "GPTQ with act-order", false},
    {WeightFormat::kAwq, "AWQ", true},
    {WeightFormat::kBitsandbytes4, "bitsandbytes 4-bit", false},
    {WeightFormat::kBitsandbytes8, "bitsandbytes 8-bit", false},
    {WeightFormat::kMlx, "MLX", false},
    {WeightFormat::kUnknown, "of an unknown format", false},
};

const FormatRow& row_of(WeightFormat format) {
  const auto* row = std::find_if(std::begin(kFormats), std::end(kFormats),
                                 [&](const FormatRow& r) { return r.format == format; });
  REPLAYSSM_CHECK(row != std::end(kFormats), static_cast<int32_t>(format));
  return *row;
}

bool is_float(const TensorView& tensor) {
  return tensor.dtype == FileDType::kF32 || tensor.dtype == FileDType::kF16 ||
         tensor.dtype == FileDType::kBF16;
}

int64_t dim(const TensorView& tensor, size_t i) {
  return i < tensor.shape.size() ? tensor.shape[i] : 1;
}

int64_t quotient(int64_t a, int64_t b) { return b == 0 ? 0 : a / b; }

// One module's tensors by what stands behind its name: "a.weight_scale", or, where the module's
// weight is called "a" itself, as that of fused experts is, "a_scale".
class Parts {
 public:
  Parts(const TensorFiles& files, const std::string& module)
      : files_(files), module_(module), fused_(files.find(module) != nullptr) {}

  const TensorView* operator()(std::string_view part) const {
    constexpr std::string_view kWeight = "weight";
    if (!fused_) return files_.find(concat(module_, ".", part));
    if (!part.starts_with(kWeight)) return nullptr;
    return files_.find(concat(module_, part.substr(kWeight.size())));
  }

 private:
  const TensorFiles& files_;
  const std::string& module_;
  bool fused_;
};

// E4M3 bytes by their scale's shape; of fused experts each has such a scale.
void read_fp8(const Parts& part, ModuleFormat& out) {
  out.bits = 8;
  const TensorView* inverse = part("weight_scale_inv");
  out.scale = inverse != nullptr ? inverse : part("weight_scale");
  const auto& of_weight = out.weight->shape;
  if (out.scale == nullptr || of_weight.size() < 2) return;
  const int64_t rows = of_weight[of_weight.size() - 2], cols = of_weight.back();
  const int64_t matrices = quotient(out.weight->n_elements(), rows * cols);
  const auto blocks = [](int64_t n) { return (n + kFp8BlockEdge - 1) / kFp8BlockEdge; };
  std::vector<int64_t> grid = of_weight;
  grid[grid.size() - 2] = blocks(rows);
  grid.back() = blocks(cols);
  const int64_t n = out.scale->n_elements();
  const bool one_each = n == 1 || n == matrices, by_row = n == rows * matrices;
  // A grid may be of one element, or of one column: the name tells then.
  if (out.scale->shape == grid && (inverse != nullptr || !(one_each || by_row))) {
    out.format = WeightFormat::kFp8Block;
    out.group = kFp8BlockEdge;
  } else if (one_each) {
    out.format = WeightFormat::kFp8Tensor;
  } else if (by_row) {
    out.format = WeightFormat::kFp8Channel;
  }
}

// "weight" of bytes or words.
void read_weight(const Parts& part, ModuleFormat& out) {
  const TensorView& weight = *out.weight;
  out.scale = part("weight_scale");
  out.input_scale = part("input_scale");
  if (is_float(weight)) {
    out.format = WeightFormat::kFloat;
    out.bits = static_cast<int32_t>(8 * file_dtype_bytes(weight.dtype));
  } else if (weight.dtype == FileDType::kF8E4M3) {
    read_fp8(part, out);
  } else if (part("weight.absmax") != nullptr || part("weight.quant_map") != nullptr) {
    out.format = WeightFormat::kBitsandbytes4;
    out.bits = 4;
  } else if (weight.dtype == FileDType::kI8 && part("SCB") != nullptr) {
    out.format = WeightFormat::kBitsandbytes8;
    out.bits = 8;
  } else if (weight.dtype == FileDType::kI8 && out.scale != nullptr) {
    out.format = WeightFormat::kInt8Channel;
    out.bits = 8;
  } else if (weight.dtype == FileDType::kU8 && out.scale != nullptr &&
             part("weight_scale_2") != nullptr) {
    out.format = WeightFormat::kNvfp4;
    out.outer_scale = part("weight_scale_2");
    out.bits = 4;
    out.group = kNvfp4Group;
  } else if (weight.dtype == FileDType::kU32 && part("scales") != nullptr) {
    out.format = WeightFormat::kMlx;
    out.scale = part("scales");
    out.zeros = part("biases");
    // Words hold cols * bits / 32; MLX shares a scale by 64 unless a configuration says otherwise.
    out.group = 64;
    out.bits = static_cast<int32_t>(
        quotient(32 * dim(weight, 1), out.group * std::max<int64_t>(dim(*out.scale, 1), 1)));
  }
}

// compressed-tensors' packed forms.
void read_packed(const Parts& part, ModuleFormat& out) {
  out.scale = part("weight_scale");
  out.outer_scale = part("weight_global_scale");
  out.zeros = part("weight_zero_point");
  out.group_index = part("weight_g_idx");
  out.input_scale = part("input_global_scale");
  if (out.scale == nullptr) return;
  if (out.weight->dtype == FileDType::kU8) {
    out.bits = 4;
    const bool outer = out.outer_scale != nullptr && out.scale->dtype == FileDType::kF8E4M3;
    out.format = outer ? WeightFormat::kNvfp4Packed : WeightFormat::kMxfp4;
    out.group = outer ? kNvfp4Group : kMxfp4Group;
    return;
  }
  const TensorView* shape = part("weight_shape");
  if (out.weight->dtype != FileDType::kI32 || shape == nullptr) return;
  const bool read = shape->n_elements() == 2 &&
                    (shape->dtype == FileDType::kI64 || shape->dtype == FileDType::kI32);
  const int64_t cols = read ? read_int64(*shape)[1] : 0;
  if (cols < 1) return;
  out.format = WeightFormat::kPacked;
  out.bits = static_cast<int32_t>(quotient(32 * dim(*out.weight, 1), cols));
  const int64_t groups = dim(*out.scale, 1);
  out.group = groups == 1 ? 0 : quotient(cols, groups);
}

// Whether the inputs' groups follow one another: g_idx[k] = k / group.
bool in_order(const TensorView& group_index, int64_t group) {
  if (group_index.dtype != FileDType::kI32 || group < 1) return false;
  const std::vector<int64_t> index = read_int64(group_index);
  for (size_t k = 0; k < index.size(); ++k) {
    if (index[k] != static_cast<int64_t>(k) / group) return false;
  }
  return true;
}

// "qweight": GPTQ packs along inputs, AWQ along outputs.
void read_qweight(const Parts& part, ModuleFormat& out) {
  out.scale = part("scales");
  out.zeros = part("qzeros");
  out.group_index = part("g_idx");
  if (out.scale == nullptr || out.weight->dtype != FileDType::kI32) return;
  const int64_t outputs = dim(*out.scale, 1), groups = dim(*out.scale, 0);
  const int64_t rows = dim(*out.weight, 0), cols = dim(*out.weight, 1);
  if (cols == outputs) {
    const int64_t zero_cols = out.zeros != nullptr ? dim(*out.zeros, 1) : 0;
    out.bits = zero_cols > 0 ? static_cast<int32_t>(quotient(32 * zero_cols, outputs)) : 4;
    const int64_t inputs = quotient(32 * rows, out.bits);
    out.group = groups == 1 ? 0 : quotient(inputs, groups);
    const bool ordered = out.group_index == nullptr ||
                         in_order(*out.group_index, out.group == 0 ? inputs : out.group);
    out.format = ordered ? WeightFormat::kGptq : WeightFormat::kGptqOrdered;
  } else if (cols > 0 && outputs % cols == 0) {
    out.bits = static_cast<int32_t>(quotient(32 * cols, outputs));
    out.group = groups == 1 ? 0 : quotient(rows, groups);
    out.format = WeightFormat::kAwq;
  }
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

void add(std::string& list, const std::string& item) {
  if (item.empty() || list.find(item) != list.npos) return;
  list += concat(list.empty() ? "" : ", ", item.substr(0, 60));
}

// The fields that tell the format, of whatever type they are.
void add_texts(const ConfigObject& object, std::initializer_list<const char*> fields,
               std::string& out) {
  for (const char* field : fields) {
    if (object.has_text(field)) add(out, object.text(field));
  }
}

}  // namespace

const char* format_name(WeightFormat format) { return row_of(format).name; }
bool is_served(WeightFormat format) { return row_of(format).served; }

std::optional<ModuleFormat> module_format(const TensorFiles& files, const std::string& module) {
  const Parts part(files, module);
  ModuleFormat out;
  if ((out.weight = part("weight_packed")) != nullptr) {
    read_packed(part, out);
  } else if ((out.weight = part("qweight")) != nullptr) {
    read_qweight(part, out);
  } else if ((out.weight = part("weight")) != nullptr) {
    read_weight(part, out);
  } else {
    return std::nullopt;
  }
  return out;
}

std::map<std::string, ModuleFormat> module_formats(const TensorFiles& files) {
  std::map<std::string, ModuleFormat> out;
  for (const TensorView& tensor : files.tensors()) {
    for (const char* part : {".weight", ".weight_packed", ".qweight"}) {
      if (!tensor.name.ends_with(part)) continue;
      const auto module = tensor.name.substr(0, tensor.name.size() - std::string_view(part).size());
      if (tensor.shape.size() < 2 && is_float(tensor)) continue;  // a norm's
      out.emplace(module, *module_format(files, module));
    }
    // Fused experts.
    if (tensor.shape.size() == 3 && tensor.name.ends_with("_proj")) {
      out.emplace(tensor.name, *module_format(files, tensor.name));
    }
  }
  return out;
}

std::string stated_quantization(const std::string& folder) {
  std::string out;
  if (const std::string path = folder + "/config.json"; exists(path)) {
    const ConfigObject config = ConfigObject::read_file(path);
    for (const char* field : {"quantization_config", "compression_config", "quantization"}) {
      if (!config.has_object(field)) continue;
      const ConfigObject q = config.object(field);
      add_texts(q, {"quant_method", "quant_algo", "format", "quant_type", "checkpoint_format"},
                out);
      if (q.has_integer("bits")) add(out, concat(q.integer("bits", 0, 64), " bits"));
    }
  }
  if (const std::string path = folder + "/hf_quant_config.json"; exists(path)) {
    const ConfigObject config = ConfigObject::read_file(path);
    if (config.has_object("quantization")) {
      const ConfigObject q = config.object("quantization");
      add_texts(q, {"quant_algo"}, out);
      if (q.has_text("kv_cache_quant_algo")) add(out, "KV cache " + q.text("kv_cache_quant_algo"));
    }
  }
  return out;
}

void check_formats(const std::string& folder, const TensorFiles& files,
                   const std::vector<std::string>& skipped) {
  std::string first;
  ModuleFormat of_first;
  int64_t count = 0, all = 0;
  for (const auto& [module, format] : module_formats(files)) {
    const bool aside = std::any_of(skipped.begin(), skipped.end(), [&](const std::string& prefix) {
      return module.starts_with(prefix);
    });
    if (aside) continue;
    ++all;
    if (is_served(format.format)) continue;
    // FP8 whose scales are missing or of another shape: the loader tells what is wrong with them.
    const bool no_scales =
        format.format == WeightFormat::kUnknown && format.weight->dtype == FileDType::kF8E4M3;
    if (no_scales) continue;
    if (first.empty()) {
      first = module;
      of_first = format;
    }
    count += format.format == of_first.format;
  }
  if (first.empty()) return;
  const std::string stated = stated_quantization(folder);
  fail(of_first.weight->path, ": the weights of ", count, " of ", all, " modules are ",
       format_name(of_first.format), of_first.bits > 0 ? concat(", ", of_first.bits, " bits") : "",
       ", which is not supported (tensor '", of_first.weight->name, "', ",
       file_dtype_name(of_first.weight->dtype), " ", of_first.weight->shape_text(),
       stated.empty() ? "" : concat("; config.json says ", stated),
       "); supported are F32, F16, BF16, FP8, INT8, NVFP4, MXFP4, packed integers, GPTQ without "
       "act-order and AWQ");
}

}  // namespace replayssm
