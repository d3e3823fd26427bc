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
  std::string in_proj_qkv, in_proj_z, in_proj_b, in_proj_a;
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

struct MixerNames {
  std::string norm;  // before the mixer
  std::variant<Mamba2Names, GdnNames, AttentionNames, MlpNames> mixer;
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
ModelDescription describe_nemotron_h(const ConfigObject& config);

// Reads one configuration file: a model's shape without its weights.
ModelDescription describe_config(const std::string& path);

// Reads config.json and, if there, generation_config.json (end-of-text ids) of a model folder.
ModelDescription describe_model(const std::string& folder);

}  // namespace replayssm
