#include "model/weight_files.h"

#include <cstring>
#include <optional>
#include <unordered_map>

#include "core/error.h"
#include "core/memory.h"
#include "model/config.h"
#include "model/formats/published.h"
#include "model/quantization.h"

namespace replayssm {
namespace {

DType wide_dtype(const TensorView& tensor) {
  switch (tensor.dtype) {
    case FileDType::kF32:
      return DType::kF32;
    case FileDType::kF16:
      return DType::kF16;
    case FileDType::kBF16:
      return DType::kBF16;
    default:
      fail(tensor.path, ": tensor '", tensor.name, "' is ", file_dtype_name(tensor.dtype),
           "; weights must be F32, F16, BF16 or, matrices of layers, F8_E4M3 with scales");
  }
}

// "a.weight" is the weight of module "a"; experts in one tensor are no module.
std::optional<ModuleFormat> format_of_weight(const TensorFiles& files, const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  if (!name.ends_with(kWeight)) return std::nullopt;
  return module_format(files, name.substr(0, name.size() - kWeight.size()));
}

bool is_wide_or_widened(const ModuleFormat& module) {
  return module.format == WeightFormat::kFloat || module.format == WeightFormat::kFp8Tensor ||
         (module.format == WeightFormat::kFp8Block &&
          module.scale->name.ends_with(".weight_scale_inv"));
}

QuantHints read_hints(const std::string& path) {
  QuantHints hints;
  const ConfigObject config = ConfigObject::read_file(path);
  if (!config.has_object("quantization_config")) return hints;
  const ConfigObject stated = config.object("quantization_config");
  hints.gptq_symmetric = stated.boolean_or("sym", true);
  if (stated.has_text("checkpoint_format") && stated.text("checkpoint_format") == "gptq_v2") {
    hints.gptq_zero_offset = 0;
  }
  return hints;
}

class SafetensorsWeights final : public WeightFiles {
 public:
  SafetensorsWeights(const ModelDescription& model, const std::string& folder);

  bool has(const std::string& name) const override;
  MatrixFormat format_of(const std::string& name) const override;
  DType dtype_of(const std::string& name) const override { return wide_dtype(files_.at(name)); }
  ops::ConstMatrix rows(const MatrixPart& part, DType to) override;
  const Fp8Matrix& fp8(const MatrixPart& part) override;
  ops::QuantMatrix few_bits(const MatrixPart& part) override;
  bool is_tiled(const std::string&) const override { return false; }
  std::vector<float> vector(const std::string& name, int64_t n, VectorKind kind,
                            int32_t width) override;
  void check_tied_head() override;
  void finish() override;
  const std::vector<std::string>& skipped() const override { return skipped_; }
  int64_t n_parameters() const override { return n_parameters_; }

 private:
  const TensorView& find(const MatrixPart& part) const;
  const TensorView& find(const std::string& name, const std::vector<int64_t>& shape) const;
  void mark(const TensorView& tensor, int64_t n);

  const ModelDescription& model_;
  TensorFiles files_;
  QuantHints hints_;
  std::unordered_map<const TensorView*, int64_t> taken_;  // elements
  std::vector<std::string> skipped_;
  int64_t n_parameters_ = 0;
  // The last matrix that was read as FP8, and the last that was widened or copied.
  std::optional<Fp8Matrix> fp8_;
  const TensorView* copied_ = nullptr;
  DType copied_dtype_ = DType::kF32;
  Buffer copy_;
};

SafetensorsWeights::SafetensorsWeights(const ModelDescription& model, const std::string& folder)
    : model_(model),
      files_(TensorFiles::open_folder(folder)),
      hints_(read_hints(folder + "/config.json")) {
  if (!model.spec.tied && !has(model.names.lm_head)) {
    fail(files_.source(), ": has no tensor '", model.names.lm_head,
         "', but tie_word_embeddings is false");
  }
}

bool SafetensorsWeights::has(const std::string& name) const {
  return files_.find(name) != nullptr || format_of_weight(files_, name).has_value();
}

MatrixFormat SafetensorsWeights::format_of(const std::string& name) const {
  const auto module = format_of_weight(files_, name);
  if (module && is_served(module->format) && !is_wide_or_widened(*module)) {
    return MatrixFormat::kFewBits;
  }
  if (files_.at(name).dtype != FileDType::kF8E4M3) return MatrixFormat::kWide;
  return has(name + "_scale_inv") ? MatrixFormat::kFp8Block : MatrixFormat::kFp8Tensor;
}

const TensorView& SafetensorsWeights::find(const std::string& name,
                                           const std::vector<int64_t>& shape) const {
  const TensorView& tensor = files_.at(name);
  if (tensor.shape != shape) {
    TensorView expected;
    expected.shape = shape;
    fail(tensor.path, ": tensor '", name, "' has shape ", tensor.shape_text(),
         ", config.json needs ", expected.shape_text());
  }
  return tensor;
}

const TensorView& SafetensorsWeights::find(const MatrixPart& part) const {
  if (part.stack == 1) return find(part.name, {part.rows, part.cols});
  return find(part.name, {part.stack, part.rows / part.stack, part.cols});
}

// Parts of a tensor are taken one by one, each once.
void SafetensorsWeights::mark(const TensorView& tensor, int64_t n) {
  int64_t& taken = taken_[&tensor];
  taken += n;
  n_parameters_ += n;
  if (taken > tensor.n_elements()) {
    fail(tensor.path, ": tensor '", tensor.name, "' would be used twice");
  }
}

const Fp8Matrix& SafetensorsWeights::fp8(const MatrixPart& part) {
  const TensorView& tensor = find(part);
  if (!fp8_ || fp8_->values != &tensor) {
    fp8_ = read_fp8(files_, tensor);
    for (const TensorView* beside : fp8_->beside) taken_.try_emplace(beside, 0);
  }
  mark(tensor, part.n_rows * part.cols);
  return *fp8_;
}

ops::QuantMatrix SafetensorsWeights::few_bits(const MatrixPart& part) {
  const std::string module = part.name.substr(0, part.name.rfind('.'));
  const auto stored = find_quantised(files_, module, part.rows, part.cols, hints_);
  REPLAYSSM_CHECK(stored.has_value(), part.name);
  for (const TensorView* tensor : stored->used) taken_.try_emplace(tensor, 0);
  n_parameters_ += part.n_rows * part.cols;
  return stored->matrix.slice_rows(part.first, part.n_rows);
}

ops::ConstMatrix SafetensorsWeights::rows(const MatrixPart& part, DType to) {
  if (format_of(part.name) != MatrixFormat::kWide) {
    const Fp8Matrix& matrix = fp8(part);
    if (copied_ != matrix.values || copied_dtype_ != to) {
      copy_ = Buffer(static_cast<size_t>(part.rows * part.cols * dtype_bytes(to)));
      widen_fp8(matrix, to, copy_.data());
      copied_ = matrix.values;
      copied_dtype_ = to;
    }
    return ops::ConstMatrix{copy_.data(), to, part.rows, part.cols, part.cols}.slice_rows(
        part.first, part.n_rows);
  }
  const TensorView& tensor = find(part);
  ops::ConstMatrix all{tensor.data, wide_dtype(tensor), part.rows, part.cols, part.cols};
  mark(tensor, part.n_rows * part.cols);
  // A file's header may leave its data at any byte.
  if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(dtype_bytes(all.dtype)) !=
      0) {
    if (copied_ != &tensor) {
      copy_ = Buffer(static_cast<size_t>(tensor.bytes));
      std::memcpy(copy_.data(), tensor.data, static_cast<size_t>(tensor.bytes));
      copied_ = &tensor;
    }
    all.data = copy_.data();
  }
  return all.slice_rows(part.first, part.n_rows);
}

std::vector<float> SafetensorsWeights::vector(const std::string& name, int64_t n, VectorKind kind,
                                              int32_t width) {
  const bool conv = kind == VectorKind::kConvWeight;
  std::vector<int64_t> shape = {n};
  if (conv) {
    shape = {n / width, 1, width};
    // Tools save it without the 1, or with the 1 last: the same numbers in the same order.
    const std::vector<int64_t> flat = {n / width, width}, last = {n / width, width, 1};
    const std::vector<int64_t>& stored = files_.at(name).shape;
    if (stored == flat || stored == last) shape = stored;
  }
  const TensorView& tensor = find(name, shape);
  wide_dtype(tensor);
  mark(tensor, n);
  return conv ? taps_first(read_fp32(tensor), width) : read_fp32(tensor);
}

void SafetensorsWeights::check_tied_head() {
  const TensorNames& names = model_.names;
  if (!model_.spec.tied || !has(names.lm_head)) return;
  const std::vector<int64_t> shape = {model_.spec.vocab, model_.spec.hidden};
  const TensorView &head = find(names.lm_head, shape), &table = find(names.embedding, shape);
  taken_.try_emplace(&head, 0);
  const bool same = head.dtype == table.dtype
                        ? std::memcmp(head.data, table.data, static_cast<size_t>(head.bytes)) == 0
                        : read_fp32(head) == read_fp32(table);
  if (!same) {
    fail(head.path, ": tensor '", head.name, "' differs from '", table.name,
         "', but tie_word_embeddings is true");
  }
}

void SafetensorsWeights::finish() {
  for (const TensorView& tensor : files_.tensors()) {
    if (taken_.contains(&tensor)) continue;
    // Scales of an FP8 KV cache are known and not run.
    bool known = tensor.name.ends_with(".k_scale") || tensor.name.ends_with(".v_scale");
    for (const auto& prefix : model_.names.skipped_prefixes) {
      known = known || tensor.name.starts_with(prefix);
    }
    if (!known) {
      fail(tensor.path, ": tensor '", tensor.name, "' has no place in the model of config.json");
    }
    skipped_.push_back(tensor.name);
  }
}

}  // namespace

std::unique_ptr<WeightFiles> open_safetensors(const ModelDescription& model,
                                              const std::string& folder) {
  return std::make_unique<SafetensorsWeights>(model, folder);
}

std::vector<float> taps_first(const std::vector<float>& weight, int32_t width) {
  std::vector<float> out(weight.size());
  const auto taps = static_cast<size_t>(width), channels = weight.size() / taps;
  for (size_t i = 0; i < weight.size(); ++i) out[i % taps * channels + i / taps] = weight[i];
  return out;
}

DType stored_dtype(const ModelDescription& model, const TensorFiles& files) {
  return wide_dtype(files.at(model.names.embedding));
}

}  // namespace replayssm
