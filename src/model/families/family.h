// config.json -> what the model is, and what its tensors are called. One function per family.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "model/config.h"
#include "model/spec.h"

namespace replayssm {

struct Mamba2Names {
  std::string in_proj, conv_weight, conv_bias, a_log, skip, dt_bias, norm, out_proj;
};

struct GdnNames {
  // Either four projections, or two in which the rows of a key head stand together: its q, k, v and
  // z, and its b and a.
  std::string in_proj_qkv, in_proj_z, in_proj_b, in_proj_a;
  std::string in_proj_qkvz, in_proj_ba;
  std::string conv_weight, a_log, dt_bias, norm, out_proj;
};

struct AttentionNames {
  std::string q_proj, k_proj, v_proj, o_proj;
  std::string q_norm, k_norm;  // read only with qk_norm
};

struct MlpNames {
  std::string gate_proj;  // read only by gated kinds
  std::string up_proj, down_proj;
};

struct MoeNames {
  std::string router, router_bias;
  std::string experts;  // prefix: "...experts." and then "3.up_proj.weight"
  // All experts in one tensor each, [expert, gate and up rows, in] and [expert, out, ff]: read
  // instead where the file has them. Empty: the family has no such files.
  std::string fused_in, fused_down;
  MlpNames shared;
  std::string shared_gate;
  std::string latent_in, latent_out;
};

struct MixerNames {
  std::string norm;  // before the mixer
  std::variant<Mamba2Names, GdnNames, AttentionNames, MlpNames, MoeNames> mixer;
};

// Runs beside ModelSpec: layers[i].mixers[j] has the names mixers[i][j], of the same alternative.
struct TensorNames {
  std::string embedding, final_norm, lm_head;
  std::vector<std::vector<MixerNames>> mixers;
  std::vector<std::string> skipped_prefixes;  // known parts of the file that are not run
};

struct ModelDescription {
  ModelSpec spec;
  TensorNames names;
};

ModelDescription describe_qwen3_5(const ConfigObject& config);
ModelDescription describe_qwen3_5_moe(const ConfigObject& config);
ModelDescription describe_qwen3_next(const ConfigObject& config);
ModelDescription describe_nemotron_h(const ConfigObject& config);

// Reads one configuration file: a model's shape without its weights.
ModelDescription describe_config(const std::string& path);

// Reads config.json and, if there, generation_config.json (end-of-text ids) of a model folder.
ModelDescription describe_model(const std::string& folder);

}  // namespace replayssm
