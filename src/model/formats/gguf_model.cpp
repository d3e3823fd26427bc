#include "model/formats/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "model/families/bounds.h"

namespace replayssm {
namespace {

// What was done to a tensor when it was converted.
enum class Change {
  kNone,
  kPlusOne,         // 1 was added
  kNegativeExp,     // -exp(x)
  kTiledHeads,      // one row or number per value head, tiled
  kTiledRows,       // value_dim rows per value head, tiled
  kTiledTail,       // the same behind the rows of q and k
  kTiledInputs,     // value_dim columns per value head
  kFirstOfPairs,    // of qwen3next's ssm_ba: b
  kSecondOfPairs,   // a
  kExpert,          // one of a stack
  kFirstOfExpert,   // gate of a stack of gate and up
  kSecondOfExpert,  // up
};

struct NameRow {
  const char* model;
  const char* block;
  Change change;
};

constexpr NameRow kQwen[] = {
    {"input_layernorm.weight", "attn_norm.weight", Change::kPlusOne},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", Change::kPlusOne},
    {"self_attn.q_proj.weight", "attn_q.weight", Change::kNone},
    {"self_attn.k_proj.weight", "attn_k.weight", Change::kNone},
    {"self_attn.v_proj.weight", "attn_v.weight", Change::kNone},
    {"self_attn.o_proj.weight", "attn_output.weight", Change::kNone},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", Change::kPlusOne},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", Change::kPlusOne},
    {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight", Change::kTiledTail},
    {"linear_attn.in_proj_z.weight", "attn_gate.weight", Change::kTiledRows},
    {"linear_attn.in_proj_b.weight", "ssm_beta.weight", Change::kTiledHeads},
    {"linear_attn.in_proj_a.weight", "ssm_alpha.weight", Change::kTiledHeads},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight", Change::kTiledTail},
    {"linear_attn.A_log", "ssm_a", Change::kNegativeExp},
    {"linear_attn.dt_bias", "ssm_dt.bias", Change::kTiledHeads},
    {"linear_attn.norm.weight", "ssm_norm.weight", Change::kNone},
    {"linear_attn.out_proj.weight", "ssm_out.weight", Change::kTiledInputs},
    {"mlp.gate_proj.weight", "ffn_gate.weight", Change::kNone},
    {"mlp.up_proj.weight", "ffn_up.weight", Change::kNone},
    {"mlp.down_proj.weight", "ffn_down.weight", Change::kNone},
    {"mlp.gate.weight", "ffn_gate_inp.weight", Change::kNone},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", Change::kNone},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", Change::kNone},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", Change::kNone},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", Change::kNone},
};

constexpr NameRow kNemotron[] = {
    {"norm.weight", "attn_norm.weight", Change::kNone},
    {"mixer.in_proj.weight", "ssm_in.weight", Change::kNone},
    {"mixer.conv1d.weight", "ssm_conv1d.weight", Change::kNone},
    {"mixer.conv1d.bias", "ssm_conv1d.bias", Change::kNone},
    {"mixer.A_log", "ssm_a", Change::kNegativeExp},
    {"mixer.D", "ssm_d", Change::kNone},
    {"mixer.dt_bias", "ssm_dt.bias", Change::kNone},
    {"mixer.norm.weight", "ssm_norm.weight", Change::kNone},
    {"mixer.out_proj.weight", "ssm_out.weight", Change::kNone},
    {"mixer.q_proj.weight", "attn_q.weight", Change::kNone},
    {"mixer.k_proj.weight", "attn_k.weight", Change::kNone},
    {"mixer.v_proj.weight", "attn_v.weight", Change::kNone},
    {"mixer.o_proj.weight", "attn_output.weight", Change::kNone},
    {"mixer.up_proj.weight", "ffn_up.weight", Change::kNone},
    {"mixer.down_proj.weight", "ffn_down.weight", Change::kNone},
    {"mixer.gate.weight", "ffn_gate_inp.weight", Change::kNone},
    {"mixer.gate.e_score_correction_bias", "exp_probs_b.bias", Change::kNone},
    {"mixer.shared_experts.up_proj.weight", "ffn_up_shexp.weight", Change::kNone},
    {"mixer.shared_experts.down_proj.weight", "ffn_down_shexp.weight", Change::kNone},
    {"mixer.fc1_latent_proj.weight", "ffn_latent_down.weight", Change::kNone},
    {"mixer.fc2_latent_proj.weight", "ffn_latent_up.weight", Change::kNone},
};

constexpr const char* kKnown[] = {"qwen35", "qwen35moe", "qwen3next", "nemotron_h",
                                  "nemotron_h_moe"};
constexpr int64_t kMaxNumber = INT32_MAX;

std::string quote(const std::string& text) {
  std::string out = "'";
  for (const char c : text.substr(0, 100)) out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return out + "'";
}

}  // namespace

struct GgufModel::Source {
  std::string tensor;
  Change change = Change::kNone;
  int64_t expert = 0;
};

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
  const DType dtype = tensor->type == BlockType::kF32   ? DType::kF32
                      : tensor->type == BlockType::kF16 ? DType::kF16
                                                        : DType::kBF16;
  bool run = true;
  for (int64_t r = 0; r < rows; ++r) run = run && order[static_cast<size_t>(r)] == order[0] + r;
  const int64_t row_bytes = cols * dtype_bytes(dtype);
  const std::byte* first = tensor->data + order[0] * row_bytes;
  if (run && reinterpret_cast<uintptr_t>(first) % 4 == 0) return {first, dtype, rows, cols, cols};
  storage = Buffer(static_cast<size_t>(rows * row_bytes));
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(storage.as<std::byte>() + r * row_bytes,
                tensor->data + order[static_cast<size_t>(r)] * row_bytes,
                static_cast<size_t>(row_bytes));
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
  if (!qwen) {
    description_ = describe_nemotron_h(config);
  } else {
    description_ = architecture_ == "qwen35" ? describe_qwen3_5(config) : describe_qwen3_5_moe(config);
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
bool GgufModel::tiled() const {
  return architecture_ != "qwen3next" && key_heads_ != value_heads_;
}

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
  out["n_group"] = std::max<int64_t>(
      1, files_.integer_or(arch + ".expert_group_count", 1, 0, ops::kMaxExperts));
  out["topk_group"] = std::max<int64_t>(
      1, files_.integer_or(arch + ".expert_group_used_count", 1, 0, ops::kMaxExperts));
  if (files_.has(arch + ".moe_latent_size")) out["moe_latent_size"] = key("moe_latent_size", kMaxHidden);
  return out.dump();
}

GgufModel::Source GgufModel::locate(const std::string& name) const {
  const bool qwen = architecture_.starts_with("qwen");
  const TensorNames& names = description_.names;
  if (name == names.embedding) return {"token_embd.weight"};
  if (name == names.final_norm) {
    return {"output_norm.weight", qwen ? Change::kPlusOne : Change::kNone};
  }
  if (name == names.lm_head) return {"output.weight"};
  const std::string prefix = qwen ? "model.layers." : "backbone.layers.";
  const size_t dot = name.find('.', prefix.size());
  if (!name.starts_with(prefix) || dot == std::string::npos) return {};
  const std::string at = "blk." + name.substr(prefix.size(), dot - prefix.size()) + ".";
  const std::string rest = name.substr(dot + 1);
  const auto in = [&](const auto& table) -> Source {
    for (const NameRow& row : table) {
      if (rest != row.model) continue;
      if (architecture_ == "qwen3next" && rest.ends_with("in_proj_b.weight")) {
        return {at + "ssm_ba.weight", Change::kFirstOfPairs};
      }
      if (architecture_ == "qwen3next" && rest.ends_with("in_proj_a.weight")) {
        return {at + "ssm_ba.weight", Change::kSecondOfPairs};
      }
      return {at + row.block, row.change};
    }
    return {};
  };
  const std::string experts = qwen ? "mlp.experts." : "mixer.experts.";
  if (!rest.starts_with(experts)) return qwen ? in(kQwen) : in(kNemotron);

  // "mlp.experts.3.gate_proj.weight" is the fourth of blk.N.ffn_gate_exps.weight.
  int64_t expert = 0;
  size_t i = experts.size();
  for (; i < rest.size() && rest[i] >= '0' && rest[i] <= '9' && expert < kMaxNumber; ++i) {
    expert = 10 * expert + (rest[i] - '0');
  }
  const std::string part = rest.substr(i);
  const char* stem = part == ".gate_proj.weight"   ? "gate"
                     : part == ".up_proj.weight"   ? "up"
                     : part == ".down_proj.weight" ? "down"
                                                   : nullptr;
  if (stem == nullptr) return {};
  const std::string both = at + "ffn_gate_up_exps.weight";
  if (std::strcmp(stem, "down") != 0 && files_.find(both) != nullptr) {
    const bool first = std::strcmp(stem, "gate") == 0;
    return {both, first ? Change::kFirstOfExpert : Change::kSecondOfExpert, expert};
  }
  return {concat(at, "ffn_", stem, "_exps.weight"), Change::kExpert, expert};
}

bool GgufModel::has(const std::string& name) const {
  const Source source = locate(name);
  return !source.tensor.empty() && files_.find(source.tensor) != nullptr;
}

const GgufTensor& GgufModel::take(const Source& source) {
  const GgufTensor& tensor = files_.at(source.tensor);
  used_.insert(&tensor);
  return tensor;
}

GgufMatrix GgufModel::matrix(const std::string& name, int64_t rows, int64_t cols) {
  const Source source = locate(name);
  if (source.tensor.empty()) fail(files_.source(), ": GGUF has no tensor for '", name, "'");
  const GgufTensor& tensor = take(source);
  int64_t all = rows, first = 0;
  const bool pairs =
      source.change == Change::kFirstOfPairs || source.change == Change::kSecondOfPairs;
  const bool halves =
      source.change == Change::kFirstOfExpert || source.change == Change::kSecondOfExpert;
  const bool stacked = halves || source.change == Change::kExpert;
  const int64_t experts = stacked && tensor.shape.size() == 3 ? tensor.shape[0] : 1;
  if (pairs) all = 2 * rows;
  if (stacked) {
    const int64_t each = halves ? 2 * rows : rows;
    all = experts * each;
    first = source.expert * each + (source.change == Change::kSecondOfExpert ? rows : 0);
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
  GgufMatrix out{&tensor, rows, cols, std::vector<int64_t>(static_cast<size_t>(rows)), 1.0f, false};
  std::iota(out.order.begin(), out.order.end(), first);
  const int64_t share = key_heads_ == 0 ? 1 : value_heads_ / key_heads_;
  if (pairs) {
    const int64_t second = source.change == Change::kSecondOfPairs ? share : 0;
    for (int64_t h = 0; h < rows; ++h) {
      out.order[static_cast<size_t>(h)] = h / share * 2 * share + h % share + second;
    }
  } else if (tiled()) {
    int64_t per_head = 0, skipped = 0;
    if (source.change == Change::kTiledHeads) per_head = 1;
    if (source.change == Change::kTiledRows) per_head = value_dim_;
    if (source.change == Change::kTiledTail) {
      per_head = value_dim_;
      skipped = rows - value_heads_ * value_dim_;
    }
    for (int64_t r = skipped; per_head > 0 && r < rows; ++r) {
      const int64_t head = (r - skipped) / per_head, within = (r - skipped) % per_head;
      const int64_t at = head % share * key_heads_ + head / share;
      out.order[static_cast<size_t>(r)] = skipped + at * per_head + within;
    }
    out.inputs_tiled = source.change == Change::kTiledInputs;
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

std::vector<float> GgufModel::numbers(const std::string& name, int64_t n, bool keep_a) {
  const Source source = locate(name);
  if (source.tensor.empty()) fail(files_.source(), ": GGUF has no tensor for '", name, "'");
  const GgufTensor& tensor = take(source);
  if (tensor.n_elements() != n) {
    fail(tensor.path, ": tensor '", tensor.name, "' has shape ", tensor.shape_text(), "; needs ", n,
         " numbers");
  }
  std::vector<float> out(static_cast<size_t>(n));
  decode_blocks(tensor.type, tensor.data, n, out.data());
  const bool per_head =
      source.change == Change::kTiledHeads || source.change == Change::kNegativeExp;
  if (per_head && tiled()) {
    std::vector<float> grouped(out.size());
    const int64_t share = value_heads_ / key_heads_;
    for (int64_t h = 0; h < n; ++h) {
      grouped[static_cast<size_t>(h)] =
          out[static_cast<size_t>((h % share * key_heads_ + h / share) % n)];
    }
    out = std::move(grouped);
  }
  for (float& x : out) {
    if (source.change == Change::kPlusOne) x -= 1.0f;
    if (source.change != Change::kNegativeExp) continue;
    if (!(x <= 0.0f)) fail(tensor.path, ": tensor '", tensor.name, "' must be -exp(A_log)");
    if (!keep_a) x = static_cast<float>(std::log(-static_cast<double>(x)));
  }
  return out;
}

std::vector<float> GgufModel::vector(const std::string& name, int64_t n) {
  return numbers(name, n, false);
}

std::vector<float> GgufModel::stored_a(const std::string& name, int64_t n) {
  return numbers(name, n, true);
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
    bool skipped = false;
    for (int64_t i = n_layers_; i < n_blocks_; ++i) {
      skipped = skipped || tensor.name.starts_with(concat("blk.", i, "."));
    }
    if (!skipped && !used_.contains(&tensor)) out.push_back(tensor.name);
  }
  return out;
}

}  // namespace replayssm
