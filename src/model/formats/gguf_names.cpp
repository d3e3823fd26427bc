#include "model/formats/gguf_names.h"

#include <cstring>

#include "core/error.h"

namespace replayssm {
namespace {

constexpr int64_t kMaxNumber = INT32_MAX;

struct NameRow {
  const char* model;
  const char* block;
  GgufChange change;
};

constexpr NameRow kQwen[] = {
    {"input_layernorm.weight", "attn_norm.weight", GgufChange::kPlusOne},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", GgufChange::kPlusOne},
    {"self_attn.q_proj.weight", "attn_q.weight", GgufChange::kNone},
    {"self_attn.k_proj.weight", "attn_k.weight", GgufChange::kNone},
    {"self_attn.v_proj.weight", "attn_v.weight", GgufChange::kNone},
    {"self_attn.o_proj.weight", "attn_output.weight", GgufChange::kNone},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", GgufChange::kPlusOne},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", GgufChange::kPlusOne},
    {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight", GgufChange::kTiledTail},
    {"linear_attn.in_proj_z.weight", "attn_gate.weight", GgufChange::kTiledRows},
    {"linear_attn.in_proj_b.weight", "ssm_beta.weight", GgufChange::kTiledHeads},
    {"linear_attn.in_proj_a.weight", "ssm_alpha.weight", GgufChange::kTiledHeads},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight", GgufChange::kTiledTail},
    {"linear_attn.A_log", "ssm_a", GgufChange::kNegativeExp},
    {"linear_attn.dt_bias", "ssm_dt.bias", GgufChange::kTiledHeads},
    {"linear_attn.norm.weight", "ssm_norm.weight", GgufChange::kNone},
    {"linear_attn.out_proj.weight", "ssm_out.weight", GgufChange::kTiledInputs},
    {"mlp.gate_proj.weight", "ffn_gate.weight", GgufChange::kNone},
    {"mlp.up_proj.weight", "ffn_up.weight", GgufChange::kNone},
    {"mlp.down_proj.weight", "ffn_down.weight", GgufChange::kNone},
    {"mlp.gate.weight", "ffn_gate_inp.weight", GgufChange::kNone},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", GgufChange::kNone},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", GgufChange::kNone},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", GgufChange::kNone},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", GgufChange::kNone},
};

constexpr NameRow kNemotron[] = {
    {"norm.weight", "attn_norm.weight", GgufChange::kNone},
    {"mixer.in_proj.weight", "ssm_in.weight", GgufChange::kNone},
    {"mixer.conv1d.weight", "ssm_conv1d.weight", GgufChange::kNone},
    {"mixer.conv1d.bias", "ssm_conv1d.bias", GgufChange::kNone},
    {"mixer.A_log", "ssm_a", GgufChange::kNegativeExp},
    {"mixer.D", "ssm_d", GgufChange::kNone},
    {"mixer.dt_bias", "ssm_dt.bias", GgufChange::kNone},
    {"mixer.norm.weight", "ssm_norm.weight", GgufChange::kNone},
    {"mixer.out_proj.weight", "ssm_out.weight", GgufChange::kNone},
    {"mixer.q_proj.weight", "attn_q.weight", GgufChange::kNone},
    {"mixer.k_proj.weight", "attn_k.weight", GgufChange::kNone},
    {"mixer.v_proj.weight", "attn_v.weight", GgufChange::kNone},
    {"mixer.o_proj.weight", "attn_output.weight", GgufChange::kNone},
    {"mixer.up_proj.weight", "ffn_up.weight", GgufChange::kNone},
    {"mixer.down_proj.weight", "ffn_down.weight", GgufChange::kNone},
    {"mixer.gate.weight", "ffn_gate_inp.weight", GgufChange::kNone},
    {"mixer.gate.e_score_correction_bias", "exp_probs_b.bias", GgufChange::kNone},
    {"mixer.shared_experts.up_proj.weight", "ffn_up_shexp.weight", GgufChange::kNone},
    {"mixer.shared_experts.down_proj.weight", "ffn_down_shexp.weight", GgufChange::kNone},
    {"mixer.fc1_latent_proj.weight", "ffn_latent_down.weight", GgufChange::kNone},
    {"mixer.fc2_latent_proj.weight", "ffn_latent_up.weight", GgufChange::kNone},
};

}  // namespace

GgufPlace gguf_place(const std::string& architecture, const TensorNames& names,
                     const std::string& name) {
  const bool qwen = architecture.starts_with("qwen");
  if (name == names.embedding) return {"token_embd.weight"};
  if (name == names.final_norm) {
    return {"output_norm.weight", qwen ? GgufChange::kPlusOne : GgufChange::kNone};
  }
  if (name == names.lm_head) return {"output.weight"};
  const std::string prefix = qwen ? "model.layers." : "backbone.layers.";
  const size_t dot = name.find('.', prefix.size());
  if (!name.starts_with(prefix) || dot == std::string::npos) return {};
  const std::string at = "blk." + name.substr(prefix.size(), dot - prefix.size()) + ".";
  const std::string rest = name.substr(dot + 1);
  const auto in = [&](const auto& table) -> GgufPlace {
    for (const NameRow& row : table) {
      if (rest != row.model) continue;
      if (architecture == "qwen3next" && rest.ends_with("in_proj_b.weight")) {
        return {at + "ssm_ba.weight", GgufChange::kFirstOfPairs};
      }
      if (architecture == "qwen3next" && rest.ends_with("in_proj_a.weight")) {
        return {at + "ssm_ba.weight", GgufChange::kSecondOfPairs};
      }
      return {at + row.block, row.change};
    }
    return {};
  };
  const std::string experts = qwen ? "mlp.experts." : "mixer.experts.";
  if (!rest.starts_with(experts)) return qwen ? in(kQwen) : in(kNemotron);

  if (rest == experts + "gate_up_proj") return {at + "ffn_gate_up_exps.weight"};
  if (rest == experts + "down_proj") return {at + "ffn_down_exps.weight"};
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
  return {concat(at, "ffn_", stem, "_exps.weight"), GgufChange::kExpert, expert};
}

std::vector<int64_t> gguf_row_order(GgufChange change, int64_t rows, int64_t value_heads,
                                    int64_t key_heads, int64_t value_dim) {
  int64_t per_head = 0, skipped = 0;
  const int64_t share = key_heads == 0 ? 1 : value_heads / key_heads;
  std::vector<int64_t> order(static_cast<size_t>(rows));
  switch (change) {
    case GgufChange::kFirstOfPairs:
    case GgufChange::kSecondOfPairs:
      for (int64_t h = 0; h < rows; ++h) {
        const int64_t second = change == GgufChange::kSecondOfPairs ? share : 0;
        order[static_cast<size_t>(h)] = h / share * 2 * share + h % share + second;
      }
      return order;
    case GgufChange::kTiledHeads:
    case GgufChange::kNegativeExp:
      per_head = 1;
      break;
    case GgufChange::kTiledRows:
      per_head = value_dim;
      break;
    case GgufChange::kTiledTail:
      per_head = value_dim;
      skipped = rows - value_heads * value_dim;
      break;
    default:
      return {};
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = (r - skipped) / per_head, within = (r - skipped) % per_head;
    const int64_t at = head % share * key_heads + head / share;
    order[static_cast<size_t>(r)] = r < skipped ? r : skipped + at * per_head + within;
  }
  return order;
}

}  // namespace replayssm
