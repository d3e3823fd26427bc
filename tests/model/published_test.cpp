// Published models beside those of models/geometries: configs as their publishers nest and spell
// them, and the published numbers of parameters.
#include <algorithm>

#include "model/families/family.h"
#include "model/parameters.h"
#include "testing.h"

namespace replayssm {
namespace {

struct Qwen {
  const char* name;
  int64_t hidden, layers, heads, kv_heads, value_heads, ff;
  bool tied;
  int64_t experts, top_k;  // 0: dense
  double total, active;    // billions
};
constexpr Qwen kQwen[] = {
    {"Qwen3.5-0.8B", 1024, 24, 8, 2, 16, 3584, true, 0, 0, 0.752, 0.752},
    {"Qwen3.5-2B", 2048, 24, 8, 2, 16, 6144, true, 0, 0, 1.88, 1.88},
    {"Qwen3.5-4B", 2560, 32, 16, 4, 32, 9216, true, 0, 0, 4.21, 4.21},
    {"Qwen3.5-9B", 4096, 32, 16, 4, 32, 12288, false, 0, 0, 8.95, 7.94},
    {"Qwen3.5-27B, 3.6-27B, 3.8-27B", 5120, 64, 24, 4, 48, 17408, false, 0, 0, 26.90, 25.62},
    {"Qwen3.5-35B-A3B, 3.6-35B-A3B", 2048, 40, 16, 2, 32, 512, false, 256, 8, 34.66, 2.95},
    {"Qwen3.5-122B-A10B", 3072, 48, 32, 2, 64, 1024, false, 256, 8, 122.11, 9.01},
    {"Qwen3.5-397B-A17B", 4096, 60, 32, 2, 64, 1024, false, 512, 10, 396.35, 16.33},
};

// The text part nested in a vision model's config, as these are published.
std::string config_of(const Qwen& q) {
  const bool moe = q.experts > 0;
  const std::string ff =
      moe ? concat(R"("num_experts": )", q.experts, R"(, "num_experts_per_tok": )", q.top_k,
                   R"(, "moe_intermediate_size": )", q.ff,
                   R"(, "shared_expert_intermediate_size": )", q.ff)
          : concat(R"("intermediate_size": )", q.ff);
  return concat(R"({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5)",
                moe ? "_moe" : "", R"(", "tie_word_embeddings": )", q.tied ? "true" : "false",
                R"(, "vision_config": {"depth": 27, "hidden_size": 1152}, "image_token_id": 248056,
         "text_config": {"model_type": "qwen3_5)",
                moe ? "_moe" : "", R"(_text", "vocab_size": 248320, "hidden_size": )", q.hidden,
                R"(, "num_hidden_layers": )", q.layers, R"(, "num_attention_heads": )", q.heads,
                R"(, "num_key_value_heads": )", q.kv_heads, R"(, "linear_num_value_heads": )",
                q.value_heads, ", ", ff, R"(, "full_attention_interval": 4, "head_dim": 256,
         "attn_output_gate": true, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
         "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-06,
         "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1, "output_gate_type":
         "swish", "mamba_ssm_dtype": "float32", "bos_token_id": 248044, "eos_token_id": 248044,
         "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
         "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"}}})");
}

struct Nemotron {
  const char* name;
  const char* pattern;
  int64_t hidden, ff, mamba_heads, mamba_dim, heads, kv_heads;
  double total, active;
};
constexpr Nemotron kNemotron[] = {
    {"NVIDIA-Nemotron-Nano-9B-v2", "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", 4480,
     15680, 128, 80, 40, 8, 8.89, 8.30},
    {"NVIDIA-Nemotron-3-Nano-4B", "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-", 3136, 12544, 96, 80,
     40, 8, 3.97, 3.56},
};

std::string config_of(const Nemotron& n, const char* limit) {
  return concat(
      R"({"model_type": "nemotron_h", "vocab_size": 131072, "hybrid_override_pattern": ")",
      n.pattern, R"(", "hidden_size": )", n.hidden, R"(, "intermediate_size": )", n.ff,
      R"(, "mamba_num_heads": )", n.mamba_heads, R"(, "mamba_head_dim": )", n.mamba_dim,
      R"(, "num_attention_heads": )", n.heads, R"(, "num_key_value_heads": )", n.kv_heads,
      R"(, "head_dim": 128, "n_groups": 8, "ssm_state_size": 128,
                  "conv_kernel": 4, "layer_norm_epsilon": 1e-05, "max_position_embeddings": 131072,
                  "expand": 2, "rope_theta": 10000, "rope_scaling": {"type": "dynamic"},
                  "sliding_window": null, "time_step_limit": )",
      limit, R"(, "bos_token_id": 1, "eos_token_id": [2, 11, 12]})");
}

void expect_size(const char* name, const ModelSpec& spec, double total, double active) {
  const ParameterCount n = count_parameters(spec);
  EXPECT_NEAR(static_cast<double>(n.total) / 1e9, total, std::max(0.001 * total, 0.005)) << name;
  EXPECT_NEAR(static_cast<double>(n.active) / 1e9, active, std::max(0.001 * active, 0.005)) << name;
}

TEST(Published, Qwen) {
  for (const Qwen& q : kQwen) {
    const auto model = describe_config(ConfigObject::parse(config_of(q), q.name));
    expect_size(q.name, model.spec, q.total, q.active);
    EXPECT_TRUE(model.names.wrapped) << q.name;
    EXPECT_EQ(model.spec.tied, q.tied) << q.name;
    const auto& attention = std::get<AttentionSpec>(model.spec.layers[3].mixers[0]);
    EXPECT_EQ(attention.rotary_dims, 64) << q.name;
    EXPECT_EQ(attention.rope_scaling, ops::RopeScaling()) << q.name;
  }
}

TEST(Published, Nemotron) {
  for (const Nemotron& n : kNemotron) {
    for (const char* limit : {"[0.0, Infinity]", R"([0.0, {"__float__": "Infinity"}])", "null"}) {
      const std::string flat = config_of(n, limit);
      expect_size(n.name, describe_config(ConfigObject::parse(flat, n.name)).spec, n.total,
                  n.active);
      const std::string omni = concat(R"({"model_type": "NemotronH_Nano_Omni_Reasoning_V3",
          "sound_config": {"hidden_size": 1024}, "vision_config": {}, "llm_config": )",
                                      flat, "}");
      const auto wrapped = describe_config(ConfigObject::parse(omni, n.name));
      expect_size(n.name, wrapped.spec, n.total, n.active);
      EXPECT_EQ(wrapped.spec.eos_ids, (std::vector<int32_t>{2, 11, 12}));
    }
  }
}

}  // namespace
}  // namespace replayssm
