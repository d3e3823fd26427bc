// config.json -> spec: every spelling of the published files, and every refusal.
#include "model/config.h"

#include <algorithm>
#include <functional>

#include "model/families/family.h"
#include "model/parameters.h"
#include "testing.h"

namespace replayssm {
namespace {

ModelDescription describe(const std::string& text, const std::string& generation = "") {
  const TempFolder folder;
  write_text(folder.file("config.json"), text);
  if (!generation.empty()) write_text(folder.file("generation_config.json"), generation);
  return describe_model(folder.path());
}

std::string config_of(const std::string& name) { return read_text(fixture(name) + "/config.json"); }

// Refused with the file and the field; `from` stands once in the fixture's config.
void expect_refused(const std::string& name, const std::string& from, const std::string& to,
                    std::initializer_list<std::string> parts) {
  const std::string text = replaced(config_of(name), from, to);
  expect_refusal({"config.json"}, [&] { describe(text); });
  expect_refusal(parts, [&] { describe(text); });
}

// One letter a mixer: G GDN, M Mamba-2, A attention, F MLP, E experts.
std::string mixers_of(const ModelSpec& spec) {
  std::string out;
  for (const auto& layer : spec.layers) {
    for (const auto& mixer : layer.mixers) out += "MGAFE"[mixer.index()];
    out += ' ';
  }
  return out;
}

TEST(Qwen35Config, Text) {
  const auto model = describe(config_of("qwen3_5_tied"));
  const ModelSpec& spec = model.spec;
  EXPECT_EQ(mixers_of(spec), "GF GF GF AF ");
  EXPECT_EQ(spec.hidden, 40);
  EXPECT_EQ(spec.vocab, 120);
  EXPECT_TRUE(spec.tied);
  EXPECT_TRUE(spec.zero_centred_norms);
  EXPECT_EQ(spec.eos_ids, std::vector<int32_t>{5});
  const auto& gdn = std::get<GdnSpec>(spec.layers[0].mixers[0]);
  EXPECT_EQ(gdn.conv_channels(), 160);
  EXPECT_EQ(gdn.value_size(), 96);
  const auto& attention = std::get<AttentionSpec>(spec.layers[3].mixers[0]);
  EXPECT_EQ(attention.rotary_dims, 8);
  EXPECT_EQ(attention.rope_theta, 1000.0);
  EXPECT_TRUE(attention.qk_norm && attention.output_gate);
  EXPECT_EQ(model.names.embedding, "model.embed_tokens.weight");
}

TEST(Qwen35Config, VisionFile) {
  const auto model = describe(config_of("qwen3_5_vlm"));
  EXPECT_EQ(mixers_of(model.spec), "GF GF GF AF ");
  EXPECT_EQ(model.spec.model_type, "qwen3_5_text");
  expect_refused("qwen3_5_vlm", "\"hidden_size\": 40", "\"hidden_size\": \"40\"",
                 {"text_config.hidden_size", "integer"});
}

TEST(Qwen35Config, IntervalGivesTheSameLayers) {
  const std::string text = config_of("qwen3_5_untied");
  EXPECT_EQ(mixers_of(describe(text).spec), "GF GF GF AF ");
  const auto two =
      replaced(text, "\"full_attention_interval\": 4", "\"full_attention_interval\": 2");
  EXPECT_EQ(mixers_of(describe(two).spec), "GF AF GF AF ");
  const auto absent = replaced(text, "\"full_attention_interval\": 4", "\"unread\": 4");
  EXPECT_EQ(mixers_of(describe(absent).spec), "GF GF GF AF ");
}

TEST(Qwen35Config, FlatRopeFields) {
  const auto text = replaced(config_of("qwen3_5_tied"), "\"rope_parameters\": {",
                             "\"rope_theta\": 5000, \"partial_rotary_factor\": 0.5, \"old\": {");
  const auto model = describe(text);
  const auto& attention = std::get<AttentionSpec>(model.spec.layers[3].mixers[0]);
  EXPECT_EQ(attention.rotary_dims, 16);
  EXPECT_EQ(attention.rope_theta, 5000.0);
}

TEST(Qwen35Config, Refusals) {
  const std::string name = "qwen3_5_tied";
  expect_refused(name, "\"vocab_size\"", "\"vocabulary\"", {"field vocab_size is missing"});
  expect_refused(name, "\"hidden_size\": 40", "\"hidden_size\": null", {"hidden_size is missing"});
  expect_refused(name, "\"hidden_size\": 40", "\"hidden_size\": 0", {"hidden_size is 0"});
  expect_refused(name, "\"hidden_size\": 40", "\"hidden_size\": -1", {"hidden_size is -1"});
  expect_refused(name, "\"hidden_size\": 40", "\"hidden_size\": 1e3", {"hidden_size", "integer"});
  expect_refused(name, "\"hidden_size\": 40", "\"hidden_size\": 99999999999999999999",
                 {"hidden_size", "integer"});
  expect_refused(name, "\"hidden_size\": 40", "\"hidden_size\": 18446744073709551615",
                 {"hidden_size", "integer"});
  expect_refused(name, "\"vocab_size\": 120", "\"vocab_size\": 99999999", {"vocab_size"});
  expect_refused(name, "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": NaN", {"rms_norm_eps"});
  expect_refused(name, "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": \"x\"", {"rms_norm_eps"});
  expect_refused(name, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": 1",
                 {"tie_word_embeddings", "true or false"});
  expect_refused(name, "\"attention_bias\": false", "\"attention_bias\": true", {"attention_bias"});
  expect_refused(name, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3",
                 {"num_key_value_heads", "divide"});
  expect_refused(name, "\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 3",
                 {"linear_num_key_heads", "divide"});
  expect_refused(name, "\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 9",
                 {"linear_conv_kernel_dim"});
  expect_refused(name, "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5",
                 {"layer_types", "num_hidden_layers is 5"});
  expect_refused(name, "\"full_attention\"", "\"sliding_attention\"",
                 {"layer_types", "'sliding_attention'"});
  for (const char* type : {"longrope", "dynamic", "llama3"}) {
    expect_refused(name, "\"rope_type\": \"default\"", concat("\"rope_type\": \"", type, "\""),
                   {"rope_parameters.rope_type is '" + std::string(type) +
                    "'; 'default', 'linear' and 'yarn' are supported"});
  }
  expect_refused(name, "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"",
                 {"rope_parameters.factor is missing"});
  expect_refused(name, "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 1.5",
                 {"rope_parameters.partial_rotary_factor"});
  expect_refused(name, "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0.1",
                 {"partial_rotary_factor", "odd"});
  expect_refused(name, "\"rope_theta\": 1000.0", "\"rope_theta\": 0", {"rope_theta"});
  expect_refused(name, "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", {"hidden_act"});
  expect_refused(name, "\"hidden_act\"", "\"output_gate_type\": \"sigmoid\", \"hidden_act\"",
                 {"output_gate_type"});
  expect_refused(name, "\"eos_token_id\": 5", "\"eos_token_id\": 120", {"eos_token_id is 120"});
  expect_refused(name, "\"eos_token_id\": 5", "\"eos_token_id\": [1, \"x\"]", {"eos_token_id"});
  expect_refused(name, "\"qwen3_5_text\"", "\"qwen4\"", {"model_type", "'qwen4'", "nemotron_h"});
}

TEST(NemotronHConfig, ThreeSpellings) {
  for (const char* name : {"nemotron_h_pattern", "nemotron_h_names", "nemotron_h_types"}) {
    const ModelDescription model = describe(config_of(name));
    EXPECT_EQ(mixers_of(model.spec), "M A F M ") << name;
    const auto& mamba = std::get<Mamba2Spec>(model.spec.layers[0].mixers[0]);
    EXPECT_EQ(mamba.inner(), 96) << "expand is ignored";
    EXPECT_EQ(mamba.conv_channels(), 160);
    EXPECT_TRUE(mamba.conv_bias);
    EXPECT_FALSE(model.spec.zero_centred_norms);
    const auto& attention = std::get<AttentionSpec>(model.spec.layers[1].mixers[0]);
    EXPECT_EQ(attention.rotary_dims, 0);
    EXPECT_FALSE(attention.output_gate || attention.qk_norm);
    EXPECT_EQ(std::get<MlpSpec>(model.spec.layers[2].mixers[0]).kind, MlpKind::kRelu2);
  }
}

TEST(NemotronHConfig, TimeStepLimitNeverClamps) {
  const std::string text = config_of("nemotron_h_pattern");
  EXPECT_NE(text.find("Infinity"), std::string::npos);
  EXPECT_NE(config_of("nemotron_h_names").find("1e+308"), std::string::npos);
  EXPECT_EQ(config_of("nemotron_h_types").find("time_step_limit"), std::string::npos);
  const auto clamped = replaced(text, "Infinity", "0.1");
  expect_refusal({"config.json", "time_step_limit"}, [&] { describe(clamped); });
  // a bare word inside a string is text
  const auto quoted = replaced(text, "\"relu2\"", "\"Infinity \\\" NaN\"");
  expect_refusal({"mlp_hidden_act"}, [&] { describe(quoted); });
}

TEST(NemotronHConfig, Refusals) {
  const std::string name = "nemotron_h_pattern";
  expect_refused(name, "M*-M", "M*-?", {"hybrid_override_pattern", "'?'"});
  expect_refused(name, "M*-M", "M*-", {"num_hidden_layers is 4", "3 layers"});
  expect_refused(name, "M*-M", "", {"hybrid_override_pattern has 0 layers"});
  expect_refused(name, "\"hybrid_override_pattern\"", "\"pattern\"",
                 {"hybrid_override_pattern is missing"});
  expect_refused(name, "\"hybrid_override_pattern\"",
                 "\"layers_block_type\": [\"mamba\", \"mlp\", \"mlp\", \"mamba\"], "
                 "\"hybrid_override_pattern\"",
                 {"layers_block_type", "disagrees", "hybrid_override_pattern"});
  expect_refused("nemotron_h_names", "\"mlp\"", "\"moe\"", {"n_routed_experts is missing"});
  expect_refused("nemotron_h_names", "\"mlp\"", "\"rwkv\"", {"layers_block_type", "'rwkv'"});
  expect_refused("nemotron_h_names", "\"mlp\"", "3", {"layers_block_type", "strings"});
  expect_refused(name, "\"n_groups\": 2", "\"n_groups\": 3", {"n_groups", "divide"});
  expect_refused(name, "\"mamba_head_dim\": 12", "\"mamba_head_dim\": 0", {"mamba_head_dim"});
  expect_refused(name, "\"ssm_state_size\": 16", "\"ssm_state_size\": 1000000", {"ssm_state_size"});
  expect_refused(name, "\"conv_kernel\": 4", "\"conv_kernel\": 1", {"conv_kernel"});
  expect_refused(name, "\"use_bias\": false", "\"use_bias\": true", {"use_bias"});
  expect_refused(name, "\"mlp_bias\": false", "\"mlp_bias\": true", {"mlp_bias"});
  expect_refused(name, "\"head_dim\"", "\"head_size\"", {"head_dim is missing"});
  expect_refused(name, "\"layer_norm_epsilon\"", "\"eps\"", {"rms_norm_eps is missing"});
  expect_refused(name, "\"intermediate_size\"", "\"ff\"", {"intermediate_size is missing"});
  expect_refused(name, "\"use_bias\"", "\"sliding_window\": 16, \"use_bias\"", {"sliding_window"});
}

TEST(MoeConfig, Qwen) {
  for (const char* name : {"qwen3_5_moe", "qwen3_5_moe_fused"}) {
    EXPECT_EQ(mixers_of(describe(config_of(name)).spec), "GE AE ") << name;
  }
  const auto model = describe(config_of("qwen3_next"));
  EXPECT_EQ(mixers_of(model.spec), "GE GF AE ");
  const auto& moe = std::get<MoeSpec>(model.spec.layers[0].mixers[1]);
  EXPECT_EQ(moe.n_experts, 8);
  EXPECT_EQ(moe.top_k, 3);
  EXPECT_EQ(moe.shared_ff, 32);
  EXPECT_TRUE(moe.shared_gate && moe.renormalise && !moe.router_bias);
  const std::string text = config_of("qwen3_next");
  const auto every_second =
      replaced(text, "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2");
  EXPECT_EQ(mixers_of(describe(every_second).spec), "GF GF AF ");
}

TEST(MoeConfig, Nemotron) {
  EXPECT_EQ(mixers_of(describe(config_of("nemotron_h_moe")).spec), "M E A F M E ");
  const auto model = describe(config_of("nemotron_h_latent"));
  EXPECT_EQ(mixers_of(model.spec), "M E A F M E ");
  const auto& moe = std::get<MoeSpec>(model.spec.layers[1].mixers[0]);
  EXPECT_EQ(moe.score, ops::RouterScore::kSigmoid);
  EXPECT_EQ(moe.latent, 24);
  EXPECT_EQ(moe.expert_width(), 24);
  EXPECT_EQ(moe.n_groups, 4);
  EXPECT_EQ(moe.top_groups, 2);
  EXPECT_EQ(moe.scale, 2.5f);
  EXPECT_TRUE(moe.router_bias && !moe.shared_gate);
}

TEST(MoeConfig, Refusals) {
  std::string name = "qwen3_next";
  const auto refuse = [&](const std::string& field, const std::string& from, const std::string& to,
                          std::initializer_list<std::string> parts) {
    const std::string quoted = "\"" + field + "\": ";
    expect_refused(name, quoted + from, quoted + to, parts);
  };
  refuse("num_experts", "8", "0", {"num_experts is 0", "[1, 4096]"});
  refuse("num_experts", "8", "4097", {"num_experts is 4097"});
  refuse("num_experts", "8", "99999999999", {"num_experts is 99999999999"});
  refuse("num_experts", "8", "null", {"num_experts is missing"});
  refuse("num_experts_per_tok", "3", "9", {"num_experts_per_tok is 9", "num_experts is 8"});
  refuse("num_experts_per_tok", "3", "0", {"num_experts_per_tok is 0"});
  refuse("moe_intermediate_size", "24", "0", {"moe_intermediate_size is 0"});
  refuse("shared_expert_intermediate_size", "32", "-1", {"shared_expert_intermediate_size is -1"});
  refuse("norm_topk_prob", "true", "1", {"norm_topk_prob", "true or false"});
  refuse("decoder_sparse_step", "1", "0", {"decoder_sparse_step is 0"});
  refuse("intermediate_size", "56", "null", {"field intermediate_size is missing"});
  expect_refused(name, "\"mlp_only_layers\": [\n  1\n ]", "\"mlp_only_layers\": [3]",
                 {"mlp_only_layers holds 3", "[0, 2]"});
  name = "nemotron_h_latent";
  refuse("n_routed_experts", "8", "0", {"n_routed_experts is 0"});
  refuse("num_experts_per_tok", "3", "5", {"num_experts_per_tok is 5", "leaves 4 experts"});
  refuse("n_group", "4", "3", {"n_group is 3", "divide"});
  refuse("n_group", "4", "8", {"n_group is 8", "two or more"});
  refuse("topk_group", "2", "5", {"topk_group is 5", "[1, 4]"});
  refuse("routed_scaling_factor", "2.5", "NaN", {"routed_scaling_factor"});
  refuse("n_shared_experts", "1", "2", {"n_shared_experts is 2"});
  refuse("moe_latent_size", "24", "0", {"moe_latent_size is 0"});
}

// The geometry of published models: their configs are accepted and give the published sizes.
TEST(Config, PublishedModels) {
  const ModelSpec nano = describe(R"({"model_type": "nemotron_h", "vocab_size": 131072,
    "hidden_size": 3136, "intermediate_size": 12544, "num_hidden_layers": 42,
    "hybrid_override_pattern": "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-",
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "n_groups": 8,
    "mamba_num_heads": 96, "mamba_head_dim": 80, "ssm_state_size": 128, "conv_kernel": 4,
    "layer_norm_epsilon": 1e-05, "max_position_embeddings": 262144, "expand": 2,
    "sliding_window": null, "time_step_limit": [0.0, Infinity], "eos_token_id": 2})")
                             .spec;
  EXPECT_NEAR(static_cast<double>(count_parameters(nano).total), 3.97e9, 0.005e9);
  const ModelSpec qwen = describe(R"({"model_type": "qwen3_5", "tie_word_embeddings": false,
    "vision_config": {}, "text_config": {"model_type": "qwen3_5_text", "vocab_size": 248320,
    "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
    "full_attention_interval": 4, "num_attention_heads": 24, "num_key_value_heads": 4,
    "head_dim": 256, "attn_output_gate": true, "linear_num_key_heads": 16,
    "linear_num_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-06, "max_position_embeddings": 262144,
    "output_gate_type": "swish", "mtp_num_hidden_layers": 1, "mamba_ssm_dtype": "float32",
    "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
    "rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
    "eos_token_id": 248044}})")
                             .spec;
  EXPECT_NEAR(static_cast<double>(count_parameters(qwen).total), 26.90e9, 0.005e9);
  EXPECT_EQ(std::get<AttentionSpec>(qwen.layers[3].mixers[0]).rotary_dims, 64);
}

TEST(Config, EosIdsOfAllFiles) {
  const std::string text = config_of("nemotron_h_pattern");
  EXPECT_EQ(describe(text).spec.eos_ids, std::vector<int32_t>{2});
  EXPECT_EQ(describe(text, "{\"eos_token_id\": [7, 9]}").spec.eos_ids,
            (std::vector<int32_t>{2, 7, 9}));
  EXPECT_EQ(describe(text, "{\"eos_token_id\": 2}").spec.eos_ids, std::vector<int32_t>{2});
  EXPECT_EQ(describe(text, "{}").spec.eos_ids, std::vector<int32_t>{2});
  expect_refusal({"generation_config.json", "eos_token_id"},
                 [&] { describe(text, "{\"eos_token_id\": -1}"); });
  expect_refusal({"generation_config.json"}, [&] { describe(text, "{"); });
  const auto none = replaced(text, "\"eos_token_id\": 2", "\"eos_token_id\": null");
  EXPECT_TRUE(describe(none).spec.eos_ids.empty());
}

// A text model's config as a vision or speech model's nests it.
std::string nested(const std::string& field, const std::string& text, const std::string& outer) {
  return "{\"" + field + "\": " + text + ", \"vision_config\": {\"hidden_size\": 7}" + outer + "}";
}

TEST(Config, WrappersOfAllKinds) {
  const std::string nemotron = config_of("nemotron_h_pattern"), qwen = config_of("qwen3_5_tied");
  const ModelSpec flat = describe(nemotron).spec;
  for (const char* field : {"text_config", "llm_config", "language_config"}) {
    const auto outer = R"(, "model_type": "NemotronH_Nano_VL_V2", "eos_token_id": 9)";
    const ModelDescription model = describe(nested(field, nemotron, outer));
    EXPECT_EQ(model.spec.model_type, "nemotron_h") << field;
    EXPECT_EQ(mixers_of(model.spec), mixers_of(flat)) << field;
    EXPECT_EQ(model.spec.eos_ids, (std::vector<int32_t>{2, 9})) << field;
    EXPECT_TRUE(model.names.wrapped);
  }
  // The text part without a type of its own: the wrapper's name tells.
  const auto untyped = replaced(nemotron, "\"model_type\"", "\"was\"");
  for (const char* type : {"NemotronH_Nano_Omni_Reasoning_V3", "nemotron_h_omni", "nemotron_h"}) {
    const auto outer = concat(R"(, "model_type": ")", type, "\"");
    EXPECT_EQ(describe(nested("llm_config", untyped, outer)).spec.model_type, "nemotron_h") << type;
  }
  expect_refusal({"config.json", "model_type", "'llava'"},
                 [&] { describe(nested("llm_config", untyped, R"(, "model_type": "llava")")); });
  expect_refusal({"config.json", "model_type is missing"}, [&] { describe(untyped); });
  const auto twice = nested("thinker_config", nested("text_config", qwen, ""),
                            R"(, "model_type": "qwen3_5_omni", "tie_word_embeddings": false)");
  EXPECT_FALSE(describe(twice).spec.tied) << "the outer value wins";
  EXPECT_EQ(mixers_of(describe(twice).spec), "GF GF GF AF ");
}

const AttentionSpec& attention_of(const ModelDescription& model) {
  return std::get<AttentionSpec>(model.spec.layers[3].mixers[0]);
}

// Every place in which a scaling of RoPE is published; the fixture's own is rope_parameters.
TEST(Rope, SpellingsOfYarn) {
  const std::string text = config_of("qwen3_5_tied");  // 512 positions
  const std::string yarn = R"("rope_theta": 1000.0, "partial_rotary_factor": 0.25, "factor": 4.0)";
  const auto with = [&](const std::string& fields) {
    return replaced(replaced(text, "\"rope_parameters\": {", "\"was\": {"), "\"was\"",
                    fields + ", \"was\"");
  };
  for (const std::string& fields : std::vector<std::string>{
           R"("rope_parameters": {"rope_type": "yarn", )" + yarn + "}",
           R"("rope_parameters": {"type": "yarn", )" + yarn + "}",
           R"("rope_scaling": {"rope_type": "yarn", )" + yarn + "}",
           R"("rope_scaling": {"type": "yarn", )" + yarn + "}",
           R"("rope_theta": 1000.0, "partial_rotary_factor": 0.25,
              "rope_scaling": {"type": "yarn", "factor": 4.0})",
           R"("rope_parameters": {"full_attention": {"rope_type": "yarn", )" + yarn +
               R"(}, "sliding_attention": {"rope_type": "default", "rope_theta": 7}})",
           R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0},
              "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0})",
           R"("rope_scaling": null, "rope_parameters": {"rope_type": "yarn", "mrope_interleaved":
              true, "mrope_section": [2, 1, 1], )" +
               yarn + "}"}) {
    const ModelDescription model = describe(with(fields));
    const AttentionSpec& attention = attention_of(model);
    EXPECT_EQ(attention.rope_scaling.kind, ops::RopeScaling::Kind::kYarn) << fields;
    EXPECT_EQ(attention.rope_scaling.factor, 4.0) << fields;
    EXPECT_EQ(attention.rope_scaling.original_positions, 512.0) << fields;
    EXPECT_NEAR(attention.rope_scaling.attention_factor, 1.138629436111989, 1e-15) << fields;
    EXPECT_EQ(attention.rope_theta, 1000.0) << fields;
    EXPECT_EQ(attention.rotary_dims, 8) << fields;
    EXPECT_EQ(model.spec.max_positions, 2048) << fields;
  }
  const auto linear = describe(with(R"("rope_theta": 5e5, "rope_scaling": {"type": "linear",
                                       "factor": 2})"));
  EXPECT_EQ(attention_of(linear).rope_scaling.kind, ops::RopeScaling::Kind::kLinear);
  EXPECT_EQ(attention_of(linear).rope_scaling.factor, 2.0);
  EXPECT_EQ(linear.spec.max_positions, 512);
  for (const char* fields :
       {R"("rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]})",
        R"("rope_theta": 1e4, "rope_scaling": {"rope_type": "default"}, "type": "model")",
        R"("rope_theta": 1e4, "rope_scaling": null)"}) {
    EXPECT_EQ(attention_of(describe(with(fields))).rope_scaling, ops::RopeScaling()) << fields;
  }
  const auto refuse = [&](const std::string& fields, std::initializer_list<std::string> parts) {
    expect_refusal(parts, [&] { describe(with("\"rope_theta\": 1e4, " + fields)); });
  };
  refuse(R"("rope_scaling": {"type": "longrope"})",
         {"config.json", "rope_scaling.type is 'longrope'; 'default', 'linear' and 'yarn' are"});
  refuse(R"("rope_scaling": {"type": "yarn", "factor": 0.5})", {"rope_scaling.factor is 0.5"});
  refuse(R"("rope_scaling": {"type": "yarn", "factor": 2, "attention_factor": Infinity})",
         {"rope_scaling.attention_factor"});
  refuse(R"("rope_scaling": {"type": "linear"})", {"rope_scaling.factor is missing"});
  refuse(R"("rope_scaling": "yarn")", {"rope_scaling", "object"});
  refuse(R"("rope_scaling": {"type": "linear", "factor": 2},
            "rope_parameters": {"type": "yarn", "factor": 2})",
         {"rope_parameters.type", "disagrees with rope_scaling"});
}

// As transformers 5 writes such numbers, and as Python does.
TEST(Config, NumbersThatJsonHasNot) {
  const std::string text = config_of("nemotron_h_pattern");
  for (const char* number : {R"({"__float__": "Infinity"})", R"({"__float__": Infinity})",
                             R"({"__float__": 1e308})", "Infinity", "1e+308"}) {
    EXPECT_EQ(mixers_of(describe(replaced(text, "Infinity", number)).spec), "M A F M ") << number;
  }
  for (const char* number : {R"({"__float__": "NaN"})", "NaN", R"({"__float__": "0.1"})",
                             R"({"__float__": []})", R"({"float": "Infinity"})"}) {
    expect_refusal({"config.json", "time_step_limit"},
                   [&] { describe(replaced(text, "Infinity", number)); });
  }
}

TEST(Config, RefusesWhatIsNoConfig) {
  const TempFolder folder;
  expect_refusal({"config.json", "cannot open"}, [&] { describe_model(folder.path()); });
  for (const char* text : {"", "[]", "{", "3", "{\"model_type\": 1}", "{\"model_type\": null}",
                           "version https://git-lfs.github.com/spec/v1\n", "{\"a\": \xff}"}) {
    expect_refusal({"config.json"}, [&] { describe(text); });
  }
  // a file of any size is not read to its end
  write_text(folder.file("config.json"), "{");
  std::filesystem::resize_file(folder.file("config.json"), size_t{65} << 20);
  expect_refusal({"config.json", "more than"}, [&] { describe_model(folder.path()); });
  // deep nesting costs no stack
  expect_refusal({"config.json"}, [&] { describe(std::string(200000, '[')); });
  expect_refusal({"config.json"}, [&] {
    describe("{\"a\":" + std::string(200000, '[') + std::string(200000, ']') + "}");
  });
}

// Every file there gives the published size: all parameters, and those read for one token, in
// billions.
TEST(Geometries, PublishedSizes) {
  struct Size {
    const char* name;
    double total, active;
  };
  constexpr Size kSizes[] = {
      {"nemotron-3-nano-4b", 3.97, 3.56},
      {"nemotron-3-nano-30b-a3b", 31.58, 3.23},
      {"nemotron-3-super-120b-a12b", 120.67, 12.23},
      {"nemotron-3-ultra-550b-a55b", 549.31, 54.99},
      {"qwen3-next-80b-a3b", 79.67, 3.56},
      {"qwen3.5-4b", 4.21, 4.21},
      {"qwen3.5-9b", 8.95, 7.94},
      {"qwen3.5-27b", 26.90, 25.62},
      {"qwen3.5-35b-a3b", 34.66, 2.95},
      {"qwen3.5-122b-a10b", 122.11, 9.01},
  };
  const auto folder = std::string(REPLAYSSM_SOURCE_DIR) + "/models/geometries/";
  for (const Size& size : kSizes) {
    const ParameterCount n = count_parameters(describe_config(folder + size.name + ".json").spec);
    const auto near = [&](int64_t got, double want) {  // 0.1 %, or as written
      EXPECT_NEAR(static_cast<double>(got) / 1e9, want, std::max(0.001 * want, 0.005)) << size.name;
    };
    near(n.total, size.total);
    near(n.active, size.active);
  }
  int n_files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    n_files += file.path().extension() == ".json";
  }
  EXPECT_EQ(n_files, static_cast<int>(std::size(kSizes)));
}

// A file alone, as --dummy-weights takes it.
TEST(Geometries, DenseModels) {
  const auto folder = std::string(REPLAYSSM_SOURCE_DIR) + "/models/geometries/";
  const ModelSpec qwen = describe_config(folder + "qwen3.5-4b.json").spec;
  EXPECT_EQ(qwen.layers.size(), 32u);
  EXPECT_EQ(std::get<GdnSpec>(qwen.layers[0].mixers[0]).conv_channels(), 8192);
  EXPECT_EQ(std::get<AttentionSpec>(qwen.layers[3].mixers[0]).rotary_dims, 64);
  const ModelSpec nano = describe_config(folder + "nemotron-3-nano-4b.json").spec;
  EXPECT_EQ(std::count_if(nano.layers.begin(), nano.layers.end(),
                          [](const LayerSpec& layer) { return layer.mixers[0].index() == 0; }),
            21);
  EXPECT_EQ(std::get<Mamba2Spec>(nano.layers[0].mixers[0]).inner(), 7680);
  for (const char* name : {"qwen3.5-9b.json", "qwen3.5-27b.json"}) {
    EXPECT_FALSE(describe_config(folder + name).spec.tied) << name;
  }
}

}  // namespace
}  // namespace replayssm
