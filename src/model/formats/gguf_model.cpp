#include "model/formats/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "model/families/bounds.h"
#include "model/formats/encode.h"

namespace replayssm {
namespace {

constexpr const char* kKnown[] = {"qwen35", "qwen35moe", "qwen3next", "nemotron_h",
                                  "nemotron_h_moe"};
constexpr int64_t kMaxNumber = INT32_MAX;

std::string quote(const std::string& text) {
  std::string out = "'";
  for (const char c : text.substr(0, 100)) out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return out + "'";
}

// A_log of -exp(A_log). That of a bf16 model is found again to the bit, and one of fp32 where its
// step is not below that of what is stored (from 1 on).
float log_of_stored(float a) {
  const double exact = std::log(-static_cast<double>(a));
  float short_log = 0.0f;
  std::byte half[2];
  const auto nearest = static_cast<float>(exact);
  encode_blocks(BlockType::kBF16, &nearest, 1, half);
  decode_blocks(BlockType::kBF16, half, 1, &short_log);
  const double off = std::exp(static_cast<double>(short_log)) / -static_cast<double>(a) - 1.0;
  return std::abs(off) < 2.5e-7 ? short_log : nearest;  // two units of the last place
}

}  // namespace

DType wide_dtype(BlockType type) {
  if (type == BlockType::kF32) return DType::kF32;
  return type == BlockType::kF16 ? DType::kF16 : DType::kBF16;
}

ops::QuantMatrix GgufMatrix::quant() const {
  const int64_t all = tensor->n_elements() / cols;
  ops::QuantMatrix out = block_matrix(tensor->type, tensor->data, all, cols, scale);
  out.rows = rows;
  out.read = [read = std::move(out.read), order = order](int64_t row, ops::QuantRow& to) {
    read(order[static_cast<size_t>(row)], to);
  };
  return out;
}

ops::ConstMatrix GgufMatrix::dense(Buffer& storage) const {
  const DType dtype = wide_dtype(tensor->type);
  bool run = inputs.empty();
  for (int64_t r = 0; r < rows; ++r) run = run && order[static_cast<size_t>(r)] == order[0] + r;
  const int64_t bytes = dtype_bytes(dtype), row_bytes = cols * bytes;
  const std::byte* first = tensor->data + order[0] * row_bytes;
  if (run && reinterpret_cast<uintptr_t>(first) % 4 == 0) return {first, dtype, rows, cols, cols};
  storage = Buffer(static_cast<size_t>(rows * row_bytes));
  for (int64_t r = 0; r < rows; ++r) {
    std::byte* to = storage.as<std::byte>() + r * row_bytes;
    const std::byte* from = tensor->data + order[static_cast<size_t>(r)] * row_bytes;
    if (inputs.empty()) std::memcpy(to, from, static_cast<size_t>(row_bytes));
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::memcpy(to + static_cast<int64_t>(i) * bytes, from + inputs[i] * bytes,
                  static_cast<size_t>(bytes));
    }
  }
  return {storage.data(), dtype, rows, cols, cols};
}

GgufModel::GgufModel(GgufFiles files) : files_(std::move(files)) {
  architecture_ = files_.text("general.architecture");
  std::string known;
  bool served = false;
  for (const char* name : kKnown) {
    known += concat(known.empty() ? "" : ", ", name);
    served = served || architecture_ == name;
  }
  if (!served) {
    files_.refuse("general.architecture", "is ", quote(architecture_), "; known are ", known);
  }
  n_blocks_ = key("block_count", kMaxLayers);
  const std::string nextn = architecture_ + ".nextn_predict_layers";
  n_layers_ = n_blocks_ - files_.integer_or(nextn, 0, 0, n_blocks_ - 1);
  const bool qwen = architecture_.starts_with("qwen");
  const std::string text = qwen ? qwen_config() : nemotron_config();
  const ConfigObject config = ConfigObject::parse(text, files_.source());
  description_ = describe_config(config);
  if (qwen) {
    // The files hold 1 + w, rounded as the norms round it.
    description_.spec.zero_centred_norms = false;
    const std::string rotary = architecture_ + ".rope.dimension_count";
    for (LayerSpec& layer : description_.spec.layers) {
      for (MixerSpec& mixer : layer.mixers) {
        if (const auto* gdn = std::get_if<GdnSpec>(&mixer)) {
          key_heads_ = gdn->n_key_heads;
          value_heads_ = gdn->n_value_heads;
          value_dim_ = gdn->value_dim;
        } else if (auto* attention = std::get_if<AttentionSpec>(&mixer)) {
          attention->rotary_dims = static_cast<int32_t>(
              files_.integer_or(rotary, attention->rotary_dims, 0, attention->head_dim));
          if (attention->rotary_dims % 2 != 0) files_.refuse(rotary, "must be even");
          attention->qk_norm_zero_centred = false;
        }
      }
    }
  }
  description_.spec.model_type = architecture_;
}

int64_t GgufModel::key(const char* name, int64_t max) const {
  return files_.integer(concat(architecture_, ".", name), 1, max);
}

std::string GgufModel::block(int64_t layer, const char* tensor) const {
  return concat("blk.", layer, ".", tensor);
}

// Only these reorder the value heads, and a model with as many key heads has no other order.
bool GgufModel::tiled() const { return architecture_ != "qwen3next" && key_heads_ != value_heads_; }

namespace {

// What both families have.
Json common_config(const GgufFiles& files, const std::string& arch) {
  const GgufTensor& embedding = files.at("token_embd.weight");
  if (embedding.shape.size() != 2) {
    fail(embedding.path, ": tensor 'token_embd.weight' has shape ", embedding.shape_text(),
         "; needs two dimensions");
  }
  const int64_t vocab = embedding.shape[0];
  Json out;
  out["hidden_size"] = files.integer(arch + ".embedding_length", 1, kMaxHidden);
  out["vocab_size"] = vocab;
  out["max_position_embeddings"] = files.integer(arch + ".context_length", 1, kMaxPositions);
  out["tie_word_embeddings"] = files.find("output.weight") == nullptr;
  out["num_attention_heads"] = files.integer(arch + ".attention.head_count", 1, kMaxHeads);
  // A list has a 0 for each layer without attention.
  const auto kv = files.integers(arch + ".attention.head_count_kv", 0, kMaxHeads);
  out["num_key_value_heads"] = kv.empty() ? 0 : *std::max_element(kv.begin(), kv.end());
  const int64_t head = files.integer_or(
      arch + ".attention.key_length",
      out["hidden_size"].get<int64_t>() / out["num_attention_heads"].get<int64_t>(), 1,
      kMaxHeadDim);
  if (files.integer_or(arch + ".attention.value_length", head, 1, kMaxHeadDim) != head) {
    files.refuse(arch + ".attention.value_length", "differs from key_length");
  }
  out["head_dim"] = head;
  Json eos = Json::array();
  for (const char* name : {"eos", "eot", "eom"}) {
    const std::string id = concat("tokenizer.ggml.", name, "_token_id");
    if (!files.has(id)) continue;
    const int64_t token = files.integer(id, 0, vocab - 1);
    if (std::find(eos.begin(), eos.end(), Json(token)) == eos.end()) eos.push_back(token);
  }
  if (!eos.empty()) out["eos_token_id"] = eos;
  return out;
}

int64_t largest(const GgufFiles& files, const std::string& key) {
  const auto list = files.integers(key, 0, kMaxFf);
  return list.empty() ? 0 : *std::max_element(list.begin(), list.end());
}

}  // namespace

std::string GgufModel::qwen_config() const {
  const std::string& arch = architecture_;
  Json out = common_config(files_, arch);
  out["model_type"] = arch == "qwen35" ? "qwen3_5_text" : "qwen3_5_moe_text";
  out["num_hidden_layers"] = n_layers_;
  out["rms_norm_eps"] = files_.number(arch + ".attention.layer_norm_rms_epsilon", 0.0, 1.0);
  Json kinds = Json::array();
  for (int64_t i = 0; i < n_layers_; ++i) {
    const bool recurrent = files_.find(block(i, "ssm_a")) != nullptr;
    kinds.push_back(recurrent ? "linear_attention" : "full_attention");
  }
  out["layer_types"] = kinds;
  Json rope;
  rope["rope_theta"] = files_.number_or(arch + ".rope.freq_base", 10000.0, 1.0, 1e15);
  const std::string scaling = files_.text_or(arch + ".rope.scaling.type", "none");
  rope["rope_type"] = scaling == "none" ? "default" : scaling;
  if (scaling != "none") {
    rope["factor"] = files_.number(arch + ".rope.scaling.factor", 1.0, 1e6);
    rope["original_max_position_embeddings"] =
        files_.integer(arch + ".rope.scaling.original_context_length", 1, kMaxPositions);
  }
  out["rope_parameters"] = rope;
  const int64_t heads = key("ssm.time_step_rank", kMaxHeads);
  const int64_t inner = key("ssm.inner_size", kMaxNumber);
  if (inner % heads != 0) files_.refuse(arch + ".ssm.inner_size", "is no multiple of ", heads);
  out["linear_num_value_heads"] = heads;
  out["linear_value_head_dim"] = inner / heads;
  out["linear_num_key_heads"] = key("ssm.group_count", kMaxHeads);
  out["linear_key_head_dim"] = key("ssm.state_size", kMaxHeadDim);
  out["linear_conv_kernel_dim"] = key("ssm.conv_kernel", kMaxConvWidth);
  if (arch == "qwen35") {
    out["intermediate_size"] = largest(files_, arch + ".feed_forward_length");
    return out.dump();
  }
  Json dense = Json::array();
  for (int64_t i = 0; i < n_layers_; ++i) {
    if (files_.find(block(i, "ffn_gate_inp.weight")) == nullptr) dense.push_back(i);
  }
  if (!dense.empty()) {
    out["mlp_only_layers"] = dense;
    out["intermediate_size"] = largest(files_, arch + ".feed_forward_length");
  }
  out["num_experts"] = key("expert_count", ops::kMaxExperts);
  out["num_experts_per_tok"] = key("expert_used_count", ops::kMaxExperts);
  out["moe_intermediate_size"] = key("expert_feed_forward_length", kMaxFf);
  out["shared_expert_intermediate_size"] = key("expert_shared_feed_forward_length", kMaxFf);
  out["norm_topk_prob"] = files_.boolean_or(arch + ".expert_weights_norm", true);
  return out.dump();
}

std::string GgufModel::nemotron_config() const {
  const std::string& arch = architecture_;
  Json out = common_config(files_, arch);
  out["model_type"] = "nemotron_h";
  const std::string rms = arch + ".attention.layer_norm_rms_epsilon";
  out["layer_norm_epsilon"] =
      files_.number(files_.has(rms) ? rms : arch + ".attention.layer_norm_epsilon", 0.0, 1.0);
  std::string pattern;
  bool conv_bias = false;
  for (int64_t i = 0; i < n_layers_; ++i) {
    if (files_.find(block(i, "ssm_in.weight")) != nullptr) {
      pattern += 'M';
      conv_bias = conv_bias || files_.find(block(i, "ssm_conv1d.bias")) != nullptr;
    } else if (files_.find(block(i, "attn_q.weight")) != nullptr) {
      pattern += '*';
    } else {
      pattern += files_.find(block(i, "ffn_gate_inp.weight")) != nullptr ? 'E' : '-';
    }
  }
  out["hybrid_override_pattern"] = pattern;
  out["use_conv_bias"] = conv_bias;
  const int64_t heads = key("ssm.time_step_rank", kMaxHeads);
  const int64_t inner = key("ssm.inner_size", kMaxNumber);
  if (inner % heads != 0) files_.refuse(arch + ".ssm.inner_size", "is no multiple of ", heads);
  out["mamba_num_heads"] = heads;
  out["mamba_head_dim"] = inner / heads;
  out["n_groups"] = key("ssm.group_count", kMaxHeads);
  out["ssm_state_size"] = key("ssm.state_size", kMaxHeadDim);
  out["conv_kernel"] = key("ssm.conv_kernel", kMaxConvWidth);
  if (pattern.find('-') != std::string::npos) {
    out["intermediate_size"] = largest(files_, arch + ".feed_forward_length");
  }
  if (pattern.find('E') == std::string::npos) return out.dump();
  out["n_routed_experts"] = key("expert_count", ops::kMaxExperts);
  out["num_experts_per_tok"] = key("expert_used_count", ops::kMaxExperts);
  out["moe_intermediate_size"] = key("expert_feed_forward_length", kMaxFf);
  out["moe_shared_expert_intermediate_size"] = key("expert_shared_feed_forward_length", kMaxFf);
  out["norm_topk_prob"] = files_.boolean_or(arch + ".expert_weights_norm", true);
  const double scale = files_.number_or(arch + ".expert_weights_scale", 1.0, 0.0, 1e6);
  out["routed_scaling_factor"] = scale == 0.0 ? 1.0 : scale;
  out["n_group"] =
      std::max<int64_t>(1, files_.integer_or(arch + ".expert_group_count", 1, 0, ops::kMaxExperts));
  out["topk_group"] = std::max<int64_t>(
      1, files_.integer_or(arch + ".expert_group_used_count", 1, 0, ops::kMaxExperts));
  if (files_.has(arch + ".moe_latent_size"))
    out["moe_latent_size"] = key("moe_latent_size", kMaxHidden);
  return out.dump();
}

GgufPlace GgufModel::place(const std::string& name) const {
  // Stacks are given one expert at a time.
  if (name.ends_with("experts.gate_up_proj") || name.ends_with("experts.down_proj")) return {};
  GgufPlace out = gguf_place(architecture_, description_.names, name);
  // Some converters leave gate and up in one stack.
  const size_t dot = out.tensor.find('.', 4);
  const std::string both = out.tensor.substr(0, dot + 1) + "ffn_gate_up_exps.weight";
  if (out.change == GgufChange::kExpert && files_.find(both) != nullptr) {
    if (out.tensor.ends_with("ffn_gate_exps.weight")) out.change = GgufChange::kFirstOfExpert;
    if (out.tensor.ends_with("ffn_up_exps.weight")) out.change = GgufChange::kSecondOfExpert;
    if (out.change != GgufChange::kExpert) out.tensor = both;
  }
  return out;
}

bool GgufModel::has(const std::string& name) const {
  const GgufPlace source = place(name);
  return !source.tensor.empty() && files_.find(source.tensor) != nullptr;
}

BlockType GgufModel::type_of(const std::string& name) const { return find(place(name), name).type; }

bool GgufModel::has_tiled_inputs(const std::string& name) const {
  return tiled() && place(name).change == GgufChange::kTiledInputs;
}

const GgufTensor& GgufModel::find(const GgufPlace& source, const std::string& name) const {
  if (source.tensor.empty()) fail(files_.source(), ": GGUF has no tensor for '", name, "'");
  return files_.at(source.tensor);
}

const GgufTensor& GgufModel::take(const GgufPlace& source, const std::string& name) {
  const GgufTensor& tensor = find(source, name);
  used_.insert(&tensor);
  return tensor;
}

GgufMatrix GgufModel::matrix(const std::string& name, int64_t rows, int64_t cols) {
  const GgufPlace source = place(name);
  const GgufTensor& tensor = take(source, name);
  int64_t all = rows, first = 0;
  const bool pairs =
      source.change == GgufChange::kFirstOfPairs || source.change == GgufChange::kSecondOfPairs;
  const bool halves =
      source.change == GgufChange::kFirstOfExpert || source.change == GgufChange::kSecondOfExpert;
  const bool stacked = halves || source.change == GgufChange::kExpert;
  const int64_t experts = stacked && tensor.shape.size() == 3 ? tensor.shape[0] : 1;
  if (pairs) all = 2 * rows;
  if (stacked) {
    const int64_t each = halves ? 2 * rows : rows;
    all = experts * each;
    first = source.expert * each + (source.change == GgufChange::kSecondOfExpert ? rows : 0);
  }
  // A matrix of one row may have lost its first dimension.
  const bool fits = !tensor.shape.empty() && tensor.shape.back() == cols &&
                    tensor.n_elements() == all * cols && first + rows <= all &&
                    tensor.shape.size() <= (stacked ? 3u : 2u);
  if (!fits) {
    fail(tensor.path, ": tensor '", tensor.name, "' has shape ", tensor.shape_text(), "; ",
         stacked ? "each expert" : "it", " needs [", pairs || halves ? 2 * rows : rows, ", ", cols,
         "]");
  }
  GgufMatrix out{&tensor, rows, cols, std::vector<int64_t>(static_cast<size_t>(rows)), 1.0f, {}};
  std::iota(out.order.begin(), out.order.end(), first);
  if (pairs || tiled()) {
    const std::vector<int64_t> order =
        gguf_row_order(source.change, rows, value_heads_, key_heads_, value_dim_);
    if (!order.empty()) out.order = order;
    if (source.change == GgufChange::kTiledInputs) {
      out.inputs =
          gguf_row_order(GgufChange::kTiledRows, cols, value_heads_, key_heads_, value_dim_);
    }
  }
  if (tensor.type == BlockType::kNVFP4) {
    std::string scale = source.tensor;
    if (scale.ends_with(".weight")) scale.resize(scale.size() - 7);
    if (const GgufTensor* beside = files_.find(scale + ".scale")) {
      used_.insert(beside);
      const int64_t n = beside->n_elements();
      const int64_t index = n == 1 ? 0 : source.expert;
      if (beside->type != BlockType::kF32 || index >= n || (n != 1 && n != experts)) {
        fail(beside->path, ": tensor '", beside->name, "' must be one F32 per tensor or expert");
      }
      std::memcpy(&out.scale, beside->data + 4 * index, 4);
      if (!std::isfinite(out.scale)) {
        fail(beside->path, ": tensor '", beside->name, "' holds a scale that is not finite");
      }
    }
  }
  return out;
}

std::vector<float> GgufModel::vector(const std::string& name, int64_t n) {
  const GgufPlace source = place(name);
  const GgufTensor& tensor = take(source, name);
  if (tensor.n_elements() != n) {
    fail(tensor.path, ": tensor '", tensor.name, "' has shape ", tensor.shape_text(), "; needs ", n,
         " numbers");
  }
  std::vector<float> out(static_cast<size_t>(n));
  decode_blocks(tensor.type, tensor.data, n, out.data());
  const bool per_head =
      source.change == GgufChange::kTiledHeads || source.change == GgufChange::kNegativeExp;
  if (per_head && tiled()) {
    std::vector<float> grouped(out.size());
    const auto order =
        gguf_row_order(GgufChange::kTiledHeads, n, value_heads_, key_heads_, value_dim_);
    for (size_t h = 0; h < out.size(); ++h) grouped[h] = out[static_cast<size_t>(order[h])];
    out = std::move(grouped);
  }
  if (source.change == GgufChange::kNegativeExp) {
    for (float& x : out) {
      if (!(x <= 0.0f)) fail(tensor.path, ": tensor '", tensor.name, "' must be -exp(A_log)");
      x = log_of_stored(x);
    }
  }
  return out;
}

std::vector<float> GgufModel::conv(const std::string& name, int64_t channels, int64_t width) {
  // The converter squeezed [channels, 1, width].
  const GgufMatrix rows = matrix(name, channels, width);
  std::vector<float> out(static_cast<size_t>(channels * width));
  for (int64_t c = 0; c < channels; ++c) {
    const BlockShape& shape = *find_block_shape(static_cast<int32_t>(rows.tensor->type));
    const int64_t row_bytes = width / shape.elements * shape.bytes;
    decode_blocks(shape.type, rows.tensor->data + rows.order[static_cast<size_t>(c)] * row_bytes,
                  width, out.data() + c * width);
  }
  return out;
}

std::vector<std::string> GgufModel::unread() const {
  std::vector<std::string> out;
  for (const GgufTensor& tensor : files_.tensors()) {
    if (!used_.contains(&tensor)) out.push_back(tensor.name);
  }
  return out;
}

bool GgufModel::is_skipped(const std::string& tensor) const {
  if (tensor.ends_with(".input_scale")) return true;
  for (int64_t i = n_layers_; i < n_blocks_; ++i) {
    if (tensor.starts_with(concat("blk.", i, "."))) return true;
  }
  return false;
}

}  // namespace replayssm
