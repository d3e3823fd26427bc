// Qwen3.5, 3.6 and 3.8, dense and mixtures, and Qwen3-Next: Gated DeltaNet and full attention
// layers, each followed by a gated MLP or by experts of such with a gated shared one. Published
// files of 3.5 and later are the text part of a vision model.
#include <algorithm>
#include <utility>

#include "model/families/bounds.h"
#include "model/families/family.h"
#include "model/families/rope.h"

namespace replayssm {
namespace {

std::vector<bool> full_attention_layers(const ConfigObject& text) {
  const auto n_layers = static_cast<size_t>(text.integer("num_hidden_layers", 1, kMaxLayers));
  std::vector<bool> full(n_layers);
  if (!text.has("layer_types")) {
    const auto interval =
        static_cast<size_t>(text.integer_or("full_attention_interval", 4, 1, kMaxLayers));
    for (size_t i = 0; i < n_layers; ++i) full[i] = (i + 1) % interval == 0;
    return full;
  }
  const auto types = text.texts("layer_types");
  if (types.size() != n_layers) {
    text.refuse("layer_types", "has ", types.size(), " layers, num_hidden_layers is ", n_layers);
  }
  for (size_t i = 0; i < n_layers; ++i) {
    full[i] = types[i] == "full_attention";
    if (!full[i] && types[i] != "linear_attention") {
      text.refuse("layer_types", "holds '", types[i],
                  "'; known are linear_attention and full_attention");
    }
  }
  return full;
}

AttentionSpec read_attention(const ConfigObject& text, ModelSpec& spec) {
  constexpr double kRotaryShare = 0.25;  // where the file names none
  if (text.boolean_or("attention_bias", false)) text.refuse("attention_bias", "must be false");
  if (!text.boolean_or("attn_output_gate", true)) text.refuse("attn_output_gate", "must be true");
  AttentionSpec attention;
  attention.n_heads = read_size(text, "num_attention_heads", kMaxHeads);
  attention.n_kv_heads = read_size(text, "num_key_value_heads", kMaxHeads);
  attention.head_dim = read_size(text, "head_dim", kMaxHeadDim);
  if (attention.n_heads % attention.n_kv_heads != 0) {
    text.refuse("num_key_value_heads", "must divide num_attention_heads");
  }
  attention.qk_norm = true;
  attention.qk_norm_eps = spec.norm_eps;
  attention.qk_norm_zero_centred = true;
  attention.output_gate = true;
  read_rope(text, kRotaryShare, attention, spec.max_positions);
  return attention;
}

GdnSpec read_gdn(const ConfigObject& text, float eps) {
  const std::string gate = text.text_or("output_gate_type", "swish");
  if (gate != "swish" && gate != "silu") {
    text.refuse("output_gate_type", "is '", gate, "'; known are swish and silu");
  }
  GdnSpec gdn;
  gdn.n_key_heads = read_size(text, "linear_num_key_heads", kMaxHeads);
  gdn.n_value_heads = read_size(text, "linear_num_value_heads", kMaxHeads);
  gdn.key_dim = read_size(text, "linear_key_head_dim", kMaxHeadDim);
  gdn.value_dim = read_size(text, "linear_value_head_dim", kMaxHeadDim);
  gdn.conv_width =
      static_cast<int32_t>(text.integer("linear_conv_kernel_dim", kMinConvWidth, kMaxConvWidth));
  gdn.norm_eps = eps;
  if (gdn.n_value_heads % gdn.n_key_heads != 0) {
    text.refuse("linear_num_key_heads", "must divide linear_num_value_heads");
  }
  return gdn;
}

MoeSpec read_moe(const ConfigObject& text, int64_t hidden) {
  MoeSpec moe;
  moe.hidden = hidden;
  read_experts(text, "num_experts", moe);
  moe.shared_ff = read_size(text, "shared_expert_intermediate_size", kMaxFf);
  moe.shared_gate = true;
  return moe;
}

// Which layers have experts in place of one MLP.
std::vector<bool> expert_layers(const ConfigObject& text, size_t n_layers) {
  const auto step = static_cast<size_t>(text.integer_or("decoder_sparse_step", 1, 1, kMaxLayers));
  const auto last = static_cast<int64_t>(n_layers) - 1;
  const auto dense = text.integers_or_none("mlp_only_layers", 0, last);
  std::vector<bool> out(n_layers);
  for (size_t i = 0; i < n_layers; ++i) {
    const bool listed =
        std::find(dense.begin(), dense.end(), static_cast<int64_t>(i)) != dense.end();
    out[i] = !listed && (i + 1) % step == 0;
  }
  return out;
}

MixerNames gdn_names(const std::string& layer, bool grouped) {
  const std::string at = layer + "linear_attn.";
  GdnNames names;
  if (grouped) {
    names.in_proj_qkvz = at + "in_proj_qkvz.weight";
    names.in_proj_ba = at + "in_proj_ba.weight";
  } else {
    names.in_proj_qkv = at + "in_proj_qkv.weight";
    names.in_proj_z = at + "in_proj_z.weight";
    names.in_proj_b = at + "in_proj_b.weight";
    names.in_proj_a = at + "in_proj_a.weight";
  }
  names.conv_weight = at + "conv1d.weight";
  names.a_log = at + "A_log";
  names.dt_bias = at + "dt_bias";
  names.norm = at + "norm.weight";
  names.out_proj = at + "out_proj.weight";
  return {layer + "input_layernorm.weight", names};
}

MixerNames attention_names(const std::string& layer) {
  const std::string at = layer + "self_attn.";
  return {layer + "input_layernorm.weight",
          AttentionNames{at + "q_proj.weight", at + "k_proj.weight", at + "v_proj.weight",
                         at + "o_proj.weight", at + "q_norm.weight", at + "k_norm.weight"}};
}

MlpNames mlp_names(const std::string& at) {
  return {at + "gate_proj.weight", at + "up_proj.weight", at + "down_proj.weight"};
}

MixerNames ff_names(const std::string& layer, bool experts) {
  const std::string norm = layer + "post_attention_layernorm.weight";
  const std::string at = layer + "mlp.";
  if (!experts) return {norm, mlp_names(at)};
  MoeNames moe;
  moe.router = at + "gate.weight";
  moe.experts = at + "experts.";
  moe.fused_in = at + "experts.gate_up_proj";
  moe.fused_down = at + "experts.down_proj";
  moe.shared = mlp_names(at + "shared_expert.");
  moe.shared_gate = at + "shared_expert_gate.weight";
  return {norm, moe};
}

// What the families differ in.
struct Variant {
  bool experts = false;
  bool grouped_projections = false;  // of GDN, see GdnNames
};

ModelDescription describe(const ConfigObject& text, Variant variant) {
  const std::string act = text.text_or("hidden_act", "silu");
  if (act != "silu") text.refuse("hidden_act", "is '", act, "', must be silu");

  ModelDescription out;
  ModelSpec& spec = out.spec;
  spec.hidden = read_size(text, "hidden_size", kMaxHidden);
  spec.vocab = read_size(text, "vocab_size", kMaxVocab);
  spec.max_positions = text.integer("max_position_embeddings", 1, kMaxPositions);
  spec.norm_eps = static_cast<float>(text.number("rms_norm_eps", 0.0, 1.0));
  spec.zero_centred_norms = true;
  spec.tied = text.boolean_or("tie_word_embeddings", false);

  const std::string prefix = "model.";
  out.names.embedding = prefix + "embed_tokens.weight";
  out.names.final_norm = prefix + "norm.weight";
  out.names.lm_head = "lm_head.weight";

  const AttentionSpec attention = read_attention(text, spec);
  const GdnSpec gdn = read_gdn(text, spec.norm_eps);
  const std::vector<bool> full = full_attention_layers(text);
  std::vector<bool> experts(full.size());
  MoeSpec moe;
  if (variant.experts) {
    experts = expert_layers(text, full.size());
    moe = read_moe(text, spec.hidden);
  }
  MlpSpec mlp;
  if (std::find(experts.begin(), experts.end(), false) != experts.end()) {
    mlp = {MlpKind::kGatedSilu, read_size(text, "intermediate_size", kMaxFf)};
  }
  for (size_t i = 0; i < full.size(); ++i) {
    const std::string layer = concat(prefix, "layers.", i, ".");
    spec.layers.push_back({{full[i] ? MixerSpec(attention) : MixerSpec(gdn),
                            experts[i] ? MixerSpec(moe) : MixerSpec(mlp)}});
    out.names.mixers.push_back(
        {full[i] ? attention_names(layer) : gdn_names(layer, variant.grouped_projections),
         ff_names(layer, experts[i])});
  }
  // Qwen3-Next's files have the head and its configurations do not say so.
  const int64_t n_mtp =
      text.integer_or("mtp_num_hidden_layers", variant.grouped_projections ? 1 : 0, 0, kMaxLayers);
  if (n_mtp != 1) return out;
  spec.mtp = {attention, variant.experts ? MixerSpec(moe) : MixerSpec(mlp)};
  const std::string mtp = "mtp.", layer = mtp + "layers.0.";
  out.names.mtp = {mtp,
                   mtp + "fc.weight",
                   mtp + "pre_fc_norm_embedding.weight",
                   mtp + "pre_fc_norm_hidden.weight",
                   mtp + "norm.weight",
                   attention_names(layer),
                   ff_names(layer, variant.experts)};
  return out;
}

}  // namespace

ModelDescription describe_qwen3_5(const ConfigObject& text) { return describe(text, {}); }

ModelDescription describe_qwen3_5_moe(const ConfigObject& text) {
  return describe(text, {.experts = true});
}

ModelDescription describe_qwen3_next(const ConfigObject& text) {
  return describe(text, {.experts = true, .grouped_projections = true});
}

}  // namespace replayssm
