// config.json -> what the model is, and what its tensors are called. One function per family.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/config.h"
#include "model/safetensors.h"
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
  // instead where the file has them.
  std::string fused_in, fused_down;
  MlpNames shared;
  std::string shared_gate;
  std::string latent_in, latent_out;
};

struct MixerNames {
  std::string norm;  // before the mixer
  std::variant<Mamba2Names, GdnNames, AttentionNames, MlpNames, MoeNames> mixer;
};

struct MtpNames {
  std::string prefix;  // of all its tensors
  std::string fc, norm_embedding, norm_hidden, final_norm;
  MixerNames attention, feed_forward;
};

// Runs beside ModelSpec: layers[i].mixers[j] has the names mixers[i][j], of the same alternative.
struct TensorNames {
  std::string embedding, final_norm, lm_head;
  bool wrapped = false;  // the text model is a part of the files: what stands beside it is skipped
  std::vector<std::vector<MixerNames>> mixers;
  std::optional<MtpNames> mtp;  // where the spec has one
  // Of tensors that are not run: vision and audio parts, buffers, and the drafting head unless it
  // is wanted (ModelOptions::mtp). resolve_names() finds them.
  std::vector<std::string> skipped_prefixes;
};

struct ModelDescription {
  ModelSpec spec;
  TensorNames names;
};

// One function for each family, of the configuration of the text model alone. Names are those of
// the publishers' own text-only files.
ModelDescription describe_qwen3_5(const ConfigObject& text);
ModelDescription describe_qwen3_5_moe(const ConfigObject& text);
ModelDescription describe_qwen3_next(const ConfigObject& text);
ModelDescription describe_nemotron_h(const ConfigObject& text);

// A configuration, whose text model may be nested in that of a vision or speech model.
ModelDescription describe_config(const ConfigObject& config);
// Reads one configuration file: a model's shape without its weights.
ModelDescription describe_config(const std::string& path);

// A model folder: the shape by config.json, the end tokens by generation_config.json too, and,
// where there are files of tensors, the names by these. Refuses tensors in a format that is not
// read.
ModelDescription describe_model(const std::string& folder);
// The same with the folder's files at hand.
ModelDescription describe_model(const std::string& folder, const TensorFiles& files);

}  // namespace replayssm
