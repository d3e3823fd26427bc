// Nemotron-H: one mixer a layer, Mamba-2, attention without positions, a squared-ReLU MLP, or a
// mixture of such (Nemotron 3: sigmoid router; the experts of Super and Ultra work on a latent
// projection, router and shared expert on the whole). dt is not clamped: time_step_min and
// time_step_max only shape its initialisation.
#include <optional>

#include "model/families/bounds.h"
#include "model/families/family.h"

namespace replayssm {
namespace {

enum class Kind { kMamba, kAttention, kMlp, kMoe };

constexpr const char* kPattern = "hybrid_override_pattern";
constexpr const char* kMtpPattern = "mtp_hybrid_override_pattern";
constexpr const char* kMtpTypes = "mtp_layers_block_type";

std::vector<Kind> kinds_of_pattern(const ConfigObject& config, const char* field) {
  std::vector<Kind> kinds;
  for (const char c : config.text(field)) {
    switch (c) {
      case 'M':
        kinds.push_back(Kind::kMamba);
        break;
      case '*':
        kinds.push_back(Kind::kAttention);
        break;
      case '-':
        kinds.push_back(Kind::kMlp);
        break;
      case 'E':
        kinds.push_back(Kind::kMoe);
        break;
      default:
        config.refuse(field, "holds '", c, "'; known are M, *, - and E");
    }
  }
  return kinds;
}

std::vector<Kind> kinds_of_names(const ConfigObject& config, const char* field) {
  std::vector<Kind> kinds;
  for (const auto& name : config.texts(field)) {
    if (name == "mamba" || name == "linear_attention") {
      kinds.push_back(Kind::kMamba);
    } else if (name == "attention" || name == "full_attention") {
      kinds.push_back(Kind::kAttention);
    } else if (name == "mlp") {
      kinds.push_back(Kind::kMlp);
    } else if (name == "moe") {
      kinds.push_back(Kind::kMoe);
    } else {
      config.refuse(
          field, "holds '", name,
          "'; known are mamba or linear_attention, attention or full_attention, mlp and moe");
    }
  }
  return kinds;
}

// The list has three spellings; where a file has several, they must agree.
std::vector<Kind> read_kinds(const ConfigObject& config) {
  std::optional<std::vector<Kind>> kinds;
  const char* first = kPattern;
  if (config.has(kPattern)) kinds = kinds_of_pattern(config, kPattern);
  for (const char* field : {"layers_block_type", "layer_types"}) {
    if (!config.has(field)) continue;
    auto named = kinds_of_names(config, field);
    if (kinds && *kinds != named) config.refuse(field, "disagrees with ", first);
    if (!kinds) first = field;
    kinds = std::move(named);
  }
  if (!kinds) config.refuse(kPattern, "is missing, and so is layers_block_type");
  if (kinds->empty() || kinds->size() > static_cast<size_t>(kMaxLayers)) {
    config.refuse(first, "has ", kinds->size(), " layers, must have 1 to ", kMaxLayers);
  }
  const auto n_layers = static_cast<int64_t>(kinds->size());
  if (config.integer_or("num_hidden_layers", n_layers, 1, kMaxLayers) != n_layers) {
    config.refuse("num_hidden_layers", "is ", config.integer("num_hidden_layers", 1, kMaxLayers),
                  ", but ", first, " has ", n_layers, " layers");
  }
  return *kinds;
}

void refuse_unsupported(const ConfigObject& config) {
  for (const char* field : {"attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"}) {
    if (config.boolean_or(field, false)) config.refuse(field, "must be false");
  }
  if (config.text_or("mlp_hidden_act", "relu2") != "relu2") {
    config.refuse("mlp_hidden_act", "must be relu2");
  }
  if (config.text_or("mamba_hidden_act", "silu") != "silu") {
    config.refuse("mamba_hidden_act", "must be silu");
  }
  if (config.has("sliding_window")) config.refuse("sliding_window", "must be null");
  if (config.has("time_step_limit")) {
    const auto limit = config.numbers("time_step_limit");
    if (limit.size() != 2 || !(limit[0] <= 0.0 && limit[1] >= 1e30)) {
      config.refuse("time_step_limit", "asks for dt to be clamped; no published model does");
    }
  }
}

Mamba2Spec read_mamba(const ConfigObject& config, float eps) {
  Mamba2Spec mamba;
  mamba.n_heads = read_size(config, "mamba_num_heads", kMaxHeads);
  mamba.head_dim = read_size(config, "mamba_head_dim", kMaxHeadDim);
  mamba.n_groups = read_size(config, "n_groups", kMaxHeads);
  mamba.state_dim = read_size(config, "ssm_state_size", kMaxHeadDim);
  mamba.conv_width =
      static_cast<int32_t>(config.integer("conv_kernel", kMinConvWidth, kMaxConvWidth));
  mamba.conv_bias = config.boolean_or("use_conv_bias", true);
  mamba.norm_eps = eps;
  if (mamba.n_heads % mamba.n_groups != 0) {
    config.refuse("n_groups", "must divide mamba_num_heads");
  }
  return mamba;
}

AttentionSpec read_attention(const ConfigObject& config) {
  AttentionSpec attention;
  attention.n_heads = read_size(config, "num_attention_heads", kMaxHeads);
  attention.n_kv_heads = config.has("num_key_value_heads")
                             ? read_size(config, "num_key_value_heads", kMaxHeads)
                             : attention.n_heads;
  const bool older = !config.has("head_dim") && config.has("attention_head_dim");
  attention.head_dim = read_size(config, older ? "attention_head_dim" : "head_dim", kMaxHeadDim);
  if (attention.n_heads % attention.n_kv_heads != 0) {
    config.refuse("num_key_value_heads", "must divide num_attention_heads");
  }
  return attention;
}

MoeSpec read_moe(const ConfigObject& config, int64_t hidden) {
  MoeSpec moe;
  moe.hidden = hidden;
  moe.kind = MlpKind::kRelu2;
  moe.score = ops::RouterScore::kSigmoid;
  moe.router_bias = true;
  read_experts(config, "n_routed_experts", moe);
  moe.n_groups = static_cast<int32_t>(config.integer_or("n_group", 1, 1, moe.n_experts));
  if (moe.n_experts % moe.n_groups != 0 || (moe.n_groups > 1 && moe.n_experts == moe.n_groups)) {
    config.refuse("n_group", "is ", moe.n_groups, ", must divide n_routed_experts, which is ",
                  moe.n_experts, ", into groups of two or more");
  }
  moe.top_groups = static_cast<int32_t>(config.integer_or("topk_group", 1, 1, moe.n_groups));
  const int64_t eligible = int64_t{moe.top_groups} * (moe.n_experts / moe.n_groups);
  if (moe.top_k > eligible) {
    config.refuse("num_experts_per_tok", "is ", moe.top_k, ", but topk_group leaves ", eligible,
                  " experts to choose from");
  }
  moe.scale = static_cast<float>(config.number_or("routed_scaling_factor", 1.0, 1e-6, 1e6));
  if (config.has("moe_latent_size")) moe.latent = read_size(config, "moe_latent_size", kMaxHidden);
  config.integer_or("n_shared_experts", 1, 1, 1);
  moe.shared_ff = read_size(config, "moe_shared_expert_intermediate_size", kMaxFf);
  return moe;
}

MixerNames mixer_names(Kind kind, const std::string& layer) {
  const std::string at = layer + "mixer.";
  const std::string norm = layer + "norm.weight";
  switch (kind) {
    case Kind::kMamba:
      return {norm, Mamba2Names{at + "in_proj.weight", at + "conv1d.weight", at + "conv1d.bias",
                                at + "A_log", at + "D", at + "dt_bias", at + "norm.weight",
                                at + "out_proj.weight"}};
    case Kind::kAttention:
      return {norm, AttentionNames{at + "q_proj.weight", at + "k_proj.weight", at + "v_proj.weight",
                                   at + "o_proj.weight", "", ""}};
    case Kind::kMlp:
      return {norm, MlpNames{"", at + "up_proj.weight", at + "down_proj.weight"}};
    case Kind::kMoe:
      break;
  }
  MoeNames moe;
  moe.router = at + "gate.weight";
  moe.router_bias = at + "gate.e_score_correction_bias";
  moe.experts = at + "experts.";
  moe.fused_in = at + "experts.up_proj";
  moe.fused_down = at + "experts.down_proj";
  moe.shared = {"", at + "shared_experts.up_proj.weight", at + "shared_experts.down_proj.weight"};
  moe.latent_in = at + "fc1_latent_proj.weight";
  moe.latent_out = at + "fc2_latent_proj.weight";
  return {norm, moe};
}

// The drafting head: attention, then a mixture. Another layout of it is read past.
void describe_mtp(const ConfigObject& config, ModelDescription& out) {
  std::vector<Kind> kinds;
  if (config.has(kMtpPattern)) {
    kinds = kinds_of_pattern(config, kMtpPattern);
  } else if (config.has(kMtpTypes)) {
    kinds = kinds_of_names(config, kMtpTypes);
  }
  if (kinds != std::vector{Kind::kAttention, Kind::kMoe}) return;
  out.spec.mtp = {read_attention(config), read_moe(config, out.spec.hidden)};
  const std::string mtp = "mtp.", first = mtp + "layers.0.", second = mtp + "layers.1.";
  out.names.mtp = {mtp,
                   first + "eh_proj.weight",
                   first + "enorm.weight",
                   first + "hnorm.weight",
                   second + "final_layernorm.weight",
                   mixer_names(Kind::kAttention, first),
                   mixer_names(Kind::kMoe, second)};
}

}  // namespace

ModelDescription describe_nemotron_h(const ConfigObject& config) {
  refuse_unsupported(config);
  const char* eps = config.has("layer_norm_epsilon") ? "layer_norm_epsilon" : "rms_norm_eps";

  ModelDescription out;
  ModelSpec& spec = out.spec;
  spec.hidden = read_size(config, "hidden_size", kMaxHidden);
  spec.vocab = read_size(config, "vocab_size", kMaxVocab);
  spec.max_positions = config.integer("max_position_embeddings", 1, kMaxPositions);
  spec.norm_eps = static_cast<float>(config.number(eps, 0.0, 1.0));
  spec.tied = config.boolean_or("tie_word_embeddings", false);

  out.names.embedding = "backbone.embeddings.weight";
  out.names.final_norm = "backbone.norm_f.weight";
  out.names.lm_head = "lm_head.weight";

  for (const Kind kind : read_kinds(config)) {
    const std::string layer = concat("backbone.layers.", spec.layers.size(), ".");
    MixerSpec mixer;
    switch (kind) {
      case Kind::kMamba:
        mixer = read_mamba(config, spec.norm_eps);
        break;
      case Kind::kAttention:
        mixer = read_attention(config);
        break;
      case Kind::kMlp:
        mixer = MlpSpec{MlpKind::kRelu2, read_size(config, "intermediate_size", kMaxFf)};
        break;
      case Kind::kMoe:
        mixer = read_moe(config, spec.hidden);
        break;
    }
    spec.layers.push_back({{mixer}});
    out.names.mixers.push_back({mixer_names(kind, layer)});
  }
  describe_mtp(config, out);
  return out;
}

}  // namespace replayssm
