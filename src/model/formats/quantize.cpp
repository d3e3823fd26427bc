#include "model/formats/quantize.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/error.h"
#include "core/json.h"
#include "model/families/family.h"
#include "model/formats/encode.h"
#include "model/formats/gguf_names.h"
#include "model/formats/gguf_tokenizer.h"
#include "model/formats/gguf_writer.h"
#include "model/model_folder.h"
#include "model/safetensors.h"
#include "model/weight_files.h"

namespace replayssm {
namespace {

namespace fs = std::filesystem;

template <typename Mixer>
const Mixer* first_mixer(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    for (const MixerSpec& mixer : layer.mixers) {
      if (const auto* found = std::get_if<Mixer>(&mixer)) return found;
    }
  }
  return nullptr;
}

bool ends_with_any(const std::string& name, std::initializer_list<const char*> ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](const char* end) { return name.ends_with(end); });
}

// Tensors that the model does not run, multi-token prediction among them.
bool is_skipped(const TensorNames& names, const std::string& name) {
  return std::any_of(names.skipped_prefixes.begin(), names.skipped_prefixes.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

void check_plain(const TensorView& tensor) {
  if (tensor.dtype == FileDType::kF32 || tensor.dtype == FileDType::kF16 ||
      tensor.dtype == FileDType::kBF16) {
    return;
  }
  fail(tensor.path, ": tensor '", tensor.name, "' is ", file_dtype_name(tensor.dtype),
       "; quantize reads F32, F16 and BF16");
}

// Row `row` of the tensor as rows of `cols`, in fp32.
void read_row(const TensorView& tensor, int64_t row, int64_t cols, float* out) {
  TensorView part = tensor;
  const int64_t bytes = cols * file_dtype_bytes(tensor.dtype);
  part.data = tensor.data + row * bytes;
  part.bytes = bytes;
  widen_to_fp32(part, out);
}

class GgufQuantizer {
 public:
  GgufQuantizer(const std::string& folder, QuantTarget target)
      : folder_(folder),
        target_(target),
        model_(describe_model(folder)),
        files_(TensorFiles::open_folder(folder)) {
    const std::string& type = model_.spec.model_type;
    if (type == "qwen3_5" || type == "qwen3_5_text") arch_ = "qwen35";
    if (type == "qwen3_5_moe" || type == "qwen3_5_moe_text") arch_ = "qwen35moe";
    if (type == "qwen3_next") arch_ = "qwen3next";
    if (type == "nemotron_h") {
      arch_ = has_mixer<MoeSpec>(model_.spec) ? "nemotron_h_moe" : "nemotron_h";
    }
    REPLAYSSM_CHECK(!arch_.empty(), type);
    if (const auto* gdn = first_mixer<GdnSpec>(model_.spec)) gdn_ = *gdn;
  }

  void write(const std::string& out) {
    metadata();
    if (fs::exists(folder_ + "/tokenizer.json")) {
      write_gguf_tokenizer(folder_, model_.spec.vocab, writer_);
    }
    std::map<std::string, std::vector<const TensorView*>> stacks;
    for (const TensorView& tensor : files_.tensors()) {
      const std::string& name = tensor.name;
      if (is_skipped(model_.names, name)) continue;
      if (model_.spec.tied && name == model_.names.lm_head) continue;
      check_plain(tensor);
      if (add_grouped(tensor, plain_name(name))) continue;
      const GgufPlace place = gguf_place(arch_, model_.names, plain_name(name));
      if (place.tensor.empty()) {
        fail(tensor.path, ": tensor '", name, "' has no name in GGUF");
      }
      if (place.change != GgufChange::kExpert) {
        add(place, {&tensor});
        continue;
      }
      auto& stack = stacks[place.tensor];
      const auto expert = static_cast<size_t>(place.expert);
      const auto* moe = first_mixer<MoeSpec>(model_.spec);
      if (moe == nullptr || place.expert >= moe->n_experts) {
        fail(tensor.path, ": tensor '", name, "' has no place in the model of config.json");
      }
      stack.resize(std::max(stack.size(), expert + 1));
      stack[expert] = &tensor;
    }
    for (const auto& [name, stack] : stacks) {
      for (const TensorView* tensor : stack) {
        if (tensor == nullptr || tensor->shape != stack[0]->shape) {
          fail(folder_, ": the experts of ", name, " are not all there or not alike");
        }
      }
      add({name, GgufChange::kExpert}, stack);
    }
    writer_.write(out);
  }

 private:
  // Files of vision models nest the text part.
  static std::string plain_name(const std::string& name) {
    const std::string nested = "model.language_model.layers.";
    return name.starts_with(nested) ? "model.layers." + name.substr(nested.size()) : name;
  }

  // Qwen3-Next's projections whose rows stand by key head: GGUF keeps b and a so, q k v and z not.
  bool add_grouped(const TensorView& tensor, const std::string& name) {
    const size_t dot = name.rfind(".linear_attn.");
    const bool qkvz = name.ends_with(".in_proj_qkvz.weight");
    if (dot == name.npos || tensor.shape.size() != 2) return false;
    const std::string at = name.substr(0, dot) + ".linear_attn.";
    const auto place = [&](const char* part) {
      return gguf_place(arch_, model_.names, at + part).tensor;
    };
    if (name.ends_with(".in_proj_ba.weight")) {
      add({place("in_proj_b.weight")}, {&tensor});
    } else if (qkvz) {
      const int64_t key = gdn_.key_dim, values = gdn_.value_size() / gdn_.n_key_heads;
      std::vector<int64_t> qkv, z;
      const auto take = [&](int64_t first, int64_t n, std::vector<int64_t>& to) {
        for (int64_t g = 0; g < gdn_.n_key_heads; ++g) {
          for (int64_t r = 0; r < n; ++r) to.push_back(g * 2 * (key + values) + first + r);
        }
      };
      take(0, key, qkv);
      take(key, key, qkv);
      take(2 * key, values, qkv);
      take(2 * key + values, values, z);
      add({place("in_proj_qkv.weight")}, {&tensor}, qkv);
      add({place("in_proj_z.weight")}, {&tensor}, z);
    }
    return qkvz || name.ends_with(".in_proj_ba.weight");
  }

  BlockType type_of(const TensorView& first, const std::string& name, size_t rank,
                    int64_t cols) const {
    const bool matrix = rank >= 2 && name.ends_with(".weight");
    if (!matrix || ends_with_any(name, {"_norm.weight", "ssm_conv1d.weight"})) {
      return BlockType::kF32;
    }
    if (target_ == QuantTarget::kNone) {
      if (first.dtype == FileDType::kBF16) return BlockType::kBF16;
      return first.dtype == FileDType::kF16 ? BlockType::kF16 : BlockType::kF32;
    }
    if (ends_with_any(name, {"ssm_alpha.weight", "ssm_beta.weight", "ssm_ba.weight"})) {
      return BlockType::kBF16;
    }
    if (ends_with_any(name, {"ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"})) {
      return BlockType::kF32;
    }
    if (target_ == QuantTarget::kQ4_K && cols % 256 == 0) return BlockType::kQ4_K;
    return cols % 32 == 0 ? BlockType::kQ8_0 : BlockType::kBF16;
  }

  // picked: the tensor's rows that are written, in their order; empty: all.
  void add(const GgufPlace& place, const std::vector<const TensorView*>& parts,
           const std::vector<int64_t>& picked = {}) {
    const TensorView& first = *parts[0];
    if (first.shape.empty()) fail(first.path, ": tensor '", first.name, "' has no dimensions");
    std::vector<int64_t> shape = first.shape;
    // A convolution loses its middle dimension, the shared expert's gate its first.
    if (place.tensor.ends_with("ssm_conv1d.weight") && shape.size() == 3 && shape[1] == 1) {
      shape.erase(shape.begin() + 1);
    }
    if (place.tensor.ends_with("ffn_gate_inp_shexp.weight") && shape.size() == 2 && shape[0] == 1) {
      shape.erase(shape.begin());
    }
    const int64_t cols = shape.size() == 1 ? 1 : shape.back();
    int64_t rows = first.n_elements() / cols;
    const int64_t n_picked = std::ssize(picked);
    if (n_picked > 0) {
      if (*std::max_element(picked.begin(), picked.end()) >= rows) {
        fail(first.path, ": tensor '", first.name, "' has shape ", first.shape_text(),
             ", too few rows");
      }
      rows = shape[0] = n_picked;
    }
    const BlockType type = type_of(first, place.tensor, shape.size(), cols);
    if (place.change == GgufChange::kExpert) {
      shape.insert(shape.begin(), static_cast<int64_t>(parts.size()));
    }
    const auto* mamba = first_mixer<Mamba2Spec>(model_.spec);
    if (mamba != nullptr && ends_with_any(place.tensor, {"ssm_a", "ssm_d"})) shape = {rows, 1};
    if (mamba != nullptr && place.tensor.ends_with("ssm_norm.weight")) {
      shape = {mamba->n_groups, rows / mamba->n_groups};
    }
    const auto fill = [this, change = place.change, parts, picked, rows, cols,
                       type](std::byte* out) {
      fill_tensor(change, parts, picked, rows, cols, type, out);
    };
    writer_.tensor(place.tensor, type, shape, fill);
  }

  void fill_tensor(GgufChange change, const std::vector<const TensorView*>& parts,
                   const std::vector<int64_t>& picked, int64_t rows, int64_t cols, BlockType type,
                   std::byte* out) const {
    const bool tiled = arch_ != "qwen3next" && gdn_.n_key_heads != gdn_.n_value_heads;
    std::vector<int64_t> order;
    if (tiled) {
      order = gguf_row_order(change, rows, gdn_.n_value_heads, gdn_.n_key_heads, gdn_.value_dim);
    }
    const BlockShape& block = *find_block_shape(static_cast<int32_t>(type));
    const int64_t row_bytes = cols / block.elements * block.bytes;
    std::vector<float> row(static_cast<size_t>(cols)), moved(row.size());
    for (const TensorView* part : parts) {
      for (int64_t r = 0; r < rows; ++r) {
        read_row(*part, picked.empty() ? r : picked[static_cast<size_t>(r)], cols, row.data());
        for (float& x : row) {
          if (change == GgufChange::kPlusOne) x += 1.0f;
          if (change == GgufChange::kNegativeExp) x = -std::exp(x);
        }
        if (tiled && change == GgufChange::kTiledInputs) {
          tile(row, moved);
          row.swap(moved);
        }
        const int64_t to = order.empty() ? r : order[static_cast<size_t>(r)];
        encode_blocks(type, row.data(), cols, out + to * row_bytes);
      }
      out += rows * row_bytes;
    }
  }

  // The inputs of out_proj: value head by value head.
  void tile(const std::vector<float>& row, std::vector<float>& out) const {
    const int64_t heads = gdn_.n_value_heads, dim = gdn_.value_dim;
    const auto order = gguf_row_order(GgufChange::kTiledHeads, heads, heads, gdn_.n_key_heads, dim);
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(row.begin() + h * dim, dim, out.begin() + order[static_cast<size_t>(h)] * dim);
    }
  }

  void size(const char* name, int64_t value) {
    writer_.u32(concat(arch_, ".", name), static_cast<uint32_t>(value));
  }

  void metadata() {
    const ModelSpec& spec = model_.spec;
    writer_.text("general.architecture", arch_);
    writer_.text("general.name", fs::path(folder_).filename().string());
    writer_.u32("general.file_type", file_type());
    size("block_count", static_cast<int64_t>(spec.layers.size()));
    size("context_length", spec.max_positions);
    size("embedding_length", spec.hidden);
    writer_.f32(arch_ + ".attention.layer_norm_rms_epsilon", spec.norm_eps);
    std::vector<int32_t> kv, ff;
    for (const LayerSpec& layer : spec.layers) {
      kv.push_back(0);
      ff.push_back(0);
      for (const MixerSpec& mixer : layer.mixers) {
        if (const auto* a = std::get_if<AttentionSpec>(&mixer)) kv.back() = a->n_kv_heads;
        if (const auto* m = std::get_if<MlpSpec>(&mixer)) ff.back() = static_cast<int32_t>(m->ff);
      }
    }
    const bool qwen = arch_.starts_with("qwen");
    if (!qwen) writer_.i32s(arch_ + ".feed_forward_length", ff);
    const int32_t widest = *std::max_element(ff.begin(), ff.end());
    if (qwen && widest > 0) size("feed_forward_length", widest);
    if (const auto* a = first_mixer<AttentionSpec>(spec)) {
      size("attention.head_count", a->n_heads);
      size("attention.key_length", a->head_dim);
      size("attention.value_length", a->head_dim);
      if (qwen) {
        size("attention.head_count_kv", a->n_kv_heads);
        size("rope.dimension_count", a->rotary_dims);
        writer_.f32(arch_ + ".rope.freq_base", static_cast<float>(a->rope_theta));
        // Of a text all three positions are the same, so the split does not count.
        const int32_t pairs = a->rotary_dims / 2, third = pairs / 3;
        writer_.i32s(arch_ + ".rope.dimension_sections", {pairs - 2 * third, third, third, 0});
        write_rope_scaling(a->rope_scaling);
      } else {
        writer_.i32s(arch_ + ".attention.head_count_kv", kv);
      }
    }
    if (const auto* g = first_mixer<GdnSpec>(spec)) {
      size("ssm.conv_kernel", g->conv_width);
      size("ssm.state_size", g->key_dim);
      size("ssm.group_count", g->n_key_heads);
      size("ssm.time_step_rank", g->n_value_heads);
      size("ssm.inner_size", g->value_size());
      size("full_attention_interval", attention_interval());
    }
    if (const auto* m = first_mixer<Mamba2Spec>(spec)) {
      size("ssm.conv_kernel", m->conv_width);
      size("ssm.state_size", m->state_dim);
      size("ssm.group_count", m->n_groups);
      size("ssm.time_step_rank", m->n_heads);
      size("ssm.inner_size", m->inner());
    }
    if (const auto* moe = first_mixer<MoeSpec>(spec)) {
      size("expert_count", moe->n_experts);
      size("expert_used_count", moe->top_k);
      size("expert_feed_forward_length", moe->ff);
      size("expert_shared_feed_forward_length", moe->shared_ff);
      size("expert_shared_count", 1);
      size("expert_group_count", moe->n_groups);
      size("expert_group_used_count", moe->top_groups);
      writer_.boolean(arch_ + ".expert_weights_norm", moe->renormalise);
      writer_.f32(arch_ + ".expert_weights_scale", moe->scale);
      size("expert_gating_func", moe->score == ops::RouterScore::kSigmoid ? 2 : 1);
      if (moe->latent > 0) size("moe_latent_size", moe->latent);
    }
  }

  // As llama.cpp counts them.
  uint32_t file_type() const {
    if (target_ == QuantTarget::kQ8_0) return 7;
    if (target_ == QuantTarget::kQ4_K) return 14;
    const DType stored = stored_dtype(model_, files_);
    if (stored == DType::kF32) return 0;
    return stored == DType::kF16 ? 1 : 32;
  }

  void write_rope_scaling(const ops::RopeScaling& scaling) {
    if (scaling.kind == ops::RopeScaling::Kind::kNone) return;
    const bool yarn = scaling.kind == ops::RopeScaling::Kind::kYarn;
    writer_.text(arch_ + ".rope.scaling.type", yarn ? "yarn" : "linear");
    writer_.f32(arch_ + ".rope.scaling.factor", static_cast<float>(scaling.factor));
    if (yarn) {
      size("rope.scaling.original_context_length",
           static_cast<int64_t>(scaling.original_positions));
    }
  }

  int64_t attention_interval() const {
    for (size_t i = 0; i < model_.spec.layers.size(); ++i) {
      if (std::holds_alternative<AttentionSpec>(model_.spec.layers[i].mixers[0])) {
        return static_cast<int64_t>(i) + 1;
      }
    }
    return 0;
  }

  std::string folder_;
  QuantTarget target_;
  ModelDescription model_;
  TensorFiles files_;
  std::string arch_;
  GdnSpec gdn_;
  GgufWriter writer_;
};

bool keeps_precision(const TensorNames& names, const TensorView& tensor) {
  const std::string& name = tensor.name;
  return is_skipped(names, name) || name == names.embedding || name == names.lm_head ||
         tensor.shape.size() != 2 || !name.ends_with("_proj.weight") ||
         ends_with_any(name, {"in_proj_a.weight", "in_proj_b.weight", "in_proj_ba.weight"}) ||
         tensor.shape[1] % 16 != 0;
}

void write_nvfp4(const std::string& folder, const std::string& out) {
  const ModelDescription model = describe_model(folder);
  const TensorFiles files = TensorFiles::open_folder(folder);
  fs::create_directories(out);
  if (fs::equivalent(folder, out)) fail(out, ": is the model folder itself");
  std::vector<TensorToWrite> tensors;
  std::vector<Nvfp4> encoded;
  encoded.reserve(files.tensors().size());  // the tensors point into it
  Json excluded = Json::array();
  for (const TensorView& tensor : files.tensors()) {
    if (keeps_precision(model.names, tensor)) {
      tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data});
      if (tensor.shape.size() == 2 && tensor.name.ends_with(".weight")) {
        excluded.push_back(tensor.name.substr(0, tensor.name.size() - 7));
      }
      continue;
    }
    check_plain(tensor);
    const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    encoded.push_back(encode_nvfp4(read_fp32(tensor).data(), rows, cols));
    const Nvfp4& of = encoded.back();
    tensors.push_back({tensor.name, FileDType::kU8, {rows, cols / 2}, of.codes.data()});
    tensors.push_back(
        {tensor.name + "_scale", FileDType::kF8E4M3, {rows, cols / 16}, of.scales.data()});
    tensors.push_back({tensor.name + "_scale_2", FileDType::kF32, {}, &of.scale_2});
  }
  write_safetensors(out + "/model.safetensors", tensors);
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "chat_template.jinja"}) {
    if (!fs::exists(folder + "/" + name)) continue;
    fs::copy_file(folder + "/" + name, out + "/" + name, fs::copy_options::overwrite_existing);
  }
  const Json config = {{"producer", {{"name", "replayssm"}}},
                       {"quantization",
                        {{"quant_algo", "NVFP4"},
                         {"group_size", 16},
                         {"kv_cache_quant_algo", nullptr},
                         {"exclude_modules", excluded}}}};
  std::ofstream file(out + "/hf_quant_config.json");
  file << config.dump(2) << '\n';
  if (!file.flush()) fail(out, "/hf_quant_config.json: cannot write");
}

}  // namespace

void quantize_model(const std::string& folder, QuantTarget target, const std::string& out) {
  if (is_gguf(folder)) fail(folder, ": quantize reads a folder of safetensors, not GGUF");
  if (target == QuantTarget::kNvfp4) return write_nvfp4(folder, out);
  GgufQuantizer(folder, target).write(out);
}

}  // namespace replayssm
