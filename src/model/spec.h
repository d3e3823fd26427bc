// What a model is, as plain data. A family's function makes it from config.json; the forward code
// reads nothing else and knows no family.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "ops/moe.h"
#include "ops/rope_frequencies.h"

namespace replayssm {

// in_proj -> z | x B C | dt; short conv over x B C; recurrence; gate then group norm; out_proj.
struct Mamba2Spec {
  int32_t n_heads = 0;
  int32_t head_dim = 0;   // P
  int32_t n_groups = 0;   // of B and C; divides n_heads
  int32_t state_dim = 0;  // N
  int32_t conv_width = 4;
  bool conv_bias = false;
  float norm_eps = 1e-5f;

  int64_t inner() const { return int64_t{n_heads} * head_dim; }
  int64_t conv_channels() const { return inner() + 2 * int64_t{n_groups} * state_dim; }
};

// Gated DeltaNet: q k v through a short conv; a and b gates; norm per head, then gate z; out_proj.
struct GdnSpec {
  int32_t n_key_heads = 0;  // divides n_value_heads
  int32_t n_value_heads = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  int32_t conv_width = 4;
  float norm_eps = 1e-6f;

  int64_t key_size() const { return int64_t{n_key_heads} * key_dim; }
  int64_t value_size() const { return int64_t{n_value_heads} * value_dim; }
  int64_t conv_channels() const { return 2 * key_size() + value_size(); }
};

struct AttentionSpec {
  int32_t n_heads = 0;
  int32_t n_kv_heads = 0;  // divides n_heads
  int32_t head_dim = 0;
  int32_t rotary_dims = 0;  // 0: no position encoding
  double rope_theta = 10000.0;
  ops::RopeScaling rope_scaling;
  bool qk_norm = false;  // RMS norm of each q and k head, before RoPE
  float qk_norm_eps = 1e-6f;
  bool qk_norm_zero_centred = false;  // multiplies by 1 + w
  bool output_gate = false;           // q_proj gives [q | gate] a head; out times sigmoid(gate)

  int64_t q_size() const { return int64_t{n_heads} * head_dim; }
  int64_t kv_size() const { return int64_t{n_kv_heads} * head_dim; }
};

enum class MlpKind : int32_t {
  kGatedSilu,  // down(silu(gate(x)) * up(x))
  kRelu2,      // down(max(up(x), 0)^2)
};

struct MlpSpec {
  MlpKind kind = MlpKind::kGatedSilu;
  int64_t ff = 0;
};

// Every token goes to top_k of the experts, each an MLP of its own; their weighted outputs are
// summed in the order of the choice. ops/moe.h says how a router chooses.
struct MoeSpec {
  int64_t hidden = 0;  // the model's
  int32_t n_experts = 0;
  int32_t top_k = 0;
  MlpKind kind = MlpKind::kGatedSilu;  // of experts and shared expert
  int64_t ff = 0;                      // of one expert
  int64_t latent = 0;  // experts work between two projections of this width; 0: on hidden itself
  ops::RouterScore score = ops::RouterScore::kSoftmax;
  bool router_bias = false;  // added for the choice, not to the weights
  int32_t n_groups = 1;
  int32_t top_groups = 1;
  bool renormalise = true;
  float scale = 1.0f;
  int64_t shared_ff = 0;     // of the expert that sees every token; 0: none
  bool shared_gate = false;  // its output times sigmoid(gate(x))

  int64_t expert_width() const { return latent > 0 ? latent : hidden; }
};

// x += mixer(norm(x))
using MixerSpec = std::variant<Mamba2Spec, GdnSpec, AttentionSpec, MlpSpec, MoeSpec>;

template <typename Spec>
inline constexpr bool kIsRecurrent =
    std::is_same_v<Spec, Mamba2Spec> || std::is_same_v<Spec, GdnSpec>;

struct LayerSpec {
  std::vector<MixerSpec> mixers;  // in order
};

// A multi-token-prediction head: one more layer with the model's attention, fed by what the model
// already has. Entry s >= 1 of its cache and its draft of x_{s + 1} are
//
//   z_s = fc [norm_embedding(embed x_s); norm_hidden(h_{s-1})]     h: the model's final norm's
//   output m_s = final_norm(layer(z_s)), head m_s -> logits of x_{s + 1}
//
// Drafts further on take m_s in place of h_s. Its norms are as the model's.
struct MtpSpec {
  AttentionSpec attention;
  MixerSpec feed_forward;  // MlpSpec or MoeSpec
};

struct ModelSpec {
  std::string model_type;  // as in config.json, for people
  int64_t hidden = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;
  float norm_eps = 1e-6f;
  bool zero_centred_norms = false;  // the model's norms multiply by 1 + w (a mixer's gated norm: w)
  bool tied = false;                // the output head is the embedding table
  std::vector<LayerSpec> layers;
  std::optional<MtpSpec> mtp;
  std::vector<int32_t> eos_ids;  // may be empty
};

template <typename Mixer>
bool has_mixer(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    for (const MixerSpec& mixer : layer.mixers) {
      if (std::holds_alternative<Mixer>(mixer)) return true;
    }
  }
  return false;
}

}  // namespace replayssm
