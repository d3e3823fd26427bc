// A model's weights as the ops take them. Every tensor of the files is used exactly once or is
// listed as skipped; anything else refuses the load, naming file and tensor.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "core/memory.h"
#include "model/families/family.h"
#include "model/safetensors.h"
#include "model/spec.h"
#include "ops/linear.h"

namespace replayssm {

// fp32 [n], widened from whatever the file holds.
using Vector = Buffer;

struct Mamba2Weights {
  ops::Linear in_zx;            // hidden -> z [inner] | x B C [conv_channels]
  ops::Linear in_dt;            // hidden -> dt [n_heads]; its output stays fp32
  Vector conv_weight;           // [width, conv_channels]
  Vector conv_bias;             // [conv_channels], or empty
  Vector a_log, skip, dt_bias;  // [n_heads]
  Vector norm;                  // [inner]
  ops::Linear out;              // inner -> hidden
};

struct GdnWeights {
  ops::Linear in_qkvz;    // hidden -> q k v [conv_channels] | z [value_size]
  ops::Linear in_ba;      // hidden -> b | a, [n_value_heads] each; its output stays fp32
  Vector conv_weight;     // [width, conv_channels]
  Vector a_log, dt_bias;  // [n_value_heads]
  Vector norm;            // [value_dim], shared by the heads
  ops::Linear out;        // value_size -> hidden
};

struct AttentionWeights {
  ops::Linear in_qkv;     // hidden -> q (a head: [q | gate] with output_gate) | k | v
  Vector q_norm, k_norm;  // [head_dim], or empty
  ops::Linear out;        // q_size -> hidden
};

struct MlpWeights {
  ops::Linear in;    // hidden -> gate [ff] | up [ff], or up alone
  ops::Linear down;  // ff -> hidden
};

struct MoeWeights {
  ops::Linear router;  // hidden -> logits [n_experts] | shared gate [1]; its output stays fp32
  Vector router_bias;  // [n_experts], or empty
  std::vector<MlpWeights> experts;
  MlpWeights shared;                  // or empty
  ops::Linear latent_in, latent_out;  // hidden -> latent -> hidden, or empty
};

struct MixerWeights {
  Vector norm;  // [hidden]
  std::variant<Mamba2Weights, GdnWeights, AttentionWeights, MlpWeights, MoeWeights> mixer;
};

struct ModelWeights {
  Buffer embedding;  // [vocab, hidden] as stored; empty if tied: the head's table is read
  DType embedding_dtype = DType::kF32;
  ops::Linear head;                               // hidden -> vocab
  Vector final_norm;                              // [hidden]
  std::vector<std::vector<MixerWeights>> mixers;  // [layer][mixer]
  int64_t n_parameters = 0;                       // elements of the tensors in use
  std::vector<std::string> skipped;               // tensors of the files that are not run

  size_t bytes() const;
};

ModelWeights load_weights(const ModelDescription& model, const TensorFiles& files);

// The type in which the files keep the model: that of its embedding table.
DType stored_dtype(const ModelDescription& model, const TensorFiles& files);

}  // namespace replayssm
