// A model's weights as a backend's ops take them, written once for all backends. `Types` is the
// backend's:
//
//   Linear            a matrix as products take it
//   Experts           the stacks of a mixture: every expert's MlpWeights
//   Plan, ConvPlan    of a recurrent layer     KvShape    of an attention layer
//
// Vectors are fp32 in the backend's memory; null where the model has none.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "model/families/family.h"
#include "model/spec.h"
#include "ops/matrix.h"

namespace replayssm {

template <typename Types>
struct Mamba2Weights {
  typename Types::Linear in_zx;        // hidden -> z [inner] | x B C [conv_channels]
  typename Types::Linear in_dt;        // hidden -> dt [n_heads]; its output stays fp32
  const float* conv_weight = nullptr;  // [width, conv_channels]
  const float* conv_bias = nullptr;    // [conv_channels]
  const float *a_log = nullptr, *skip = nullptr, *dt_bias = nullptr;  // [n_heads]
  const float* norm = nullptr;                                        // [inner]
  typename Types::Linear out;                                         // inner -> hidden
};

template <typename Types>
struct GdnWeights {
  typename Types::Linear in_qkvz;  // hidden -> q k v [conv_channels] | z [value_size]
  typename Types::Linear in_ba;    // hidden -> b | a, [n_value_heads] each; its output stays fp32
  const float* conv_weight = nullptr;                // [width, conv_channels]
  const float *a_log = nullptr, *dt_bias = nullptr;  // [n_value_heads]
  const float* norm = nullptr;                       // [value_dim], shared by the heads
  typename Types::Linear out;                        // value_size -> hidden
  // `out` takes its value heads tiled: head h stands at h % share * n_key_heads + h / share, where
  // a key head has `share` value heads.
  bool tiled = false;
};

template <typename Types>
struct AttentionWeights {
  typename Types::Linear in_qkv;  // hidden -> q (a head: [q | gate] with output_gate) | k | v
  const float *q_norm = nullptr, *k_norm = nullptr;  // [head_dim]
  typename Types::Linear out;                        // q_size -> hidden
};

template <typename Types>
struct MlpWeights {
  typename Types::Linear in;    // hidden -> gate [ff] | up [ff], or up alone
  typename Types::Linear down;  // ff -> hidden
};

template <typename Types>
struct MoeWeights {
  // hidden -> logits [n_experts] | shared gate [1], perhaps padded; its output stays fp32
  typename Types::Linear router;
  const float* router_bias = nullptr;  // [n_experts]
  typename Types::Experts experts;
  MlpWeights<Types> shared;                      // or empty
  typename Types::Linear latent_in, latent_out;  // hidden -> latent -> hidden, or empty
};

template <typename Types>
struct MixerWeights {
  const float* norm = nullptr;  // [hidden]
  // Of the same alternative as the spec.
  std::variant<Mamba2Weights<Types>, GdnWeights<Types>, AttentionWeights<Types>, MlpWeights<Types>,
               MoeWeights<Types>>
      mixer;
};

template <typename Types>
struct MtpWeights {
  typename Types::Linear fc;  // embedding | hidden state -> hidden
  const float *norm_embedding = nullptr, *norm_hidden = nullptr, *final_norm = nullptr;  // [hidden]
  MixerWeights<Types> attention, feed_forward;
};

template <typename Types>
struct ModelWeights {
  // [vocab, hidden]; data null: `table` is read, or without one the head's.
  ops::ConstMatrix embedding = {};
  typename Types::Linear table;                          // of few bits
  typename Types::Linear head;                           // hidden -> vocab
  const float* final_norm = nullptr;                     // [hidden]
  std::vector<std::vector<MixerWeights<Types>>> mixers;  // [layer][mixer]; a layer has one at least
  std::optional<MtpWeights<Types>> mtp;

  // The mixer after mixers[i][j]; null after the last.
  const MixerWeights<Types>* after(size_t i, size_t j) const {
    if (j + 1 < mixers[i].size()) return &mixers[i][j + 1];
    return i + 1 < mixers.size() ? &mixers[i + 1].front() : nullptr;
  }
};

// What belongs to a spec: its names in the files, and its weights.
template <typename Spec>
struct MixerKind;
template <>
struct MixerKind<Mamba2Spec> {
  using Names = Mamba2Names;
  template <typename Types>
  using Weights = Mamba2Weights<Types>;
};
template <>
struct MixerKind<GdnSpec> {
  using Names = GdnNames;
  template <typename Types>
  using Weights = GdnWeights<Types>;
};
template <>
struct MixerKind<AttentionSpec> {
  using Names = AttentionNames;
  template <typename Types>
  using Weights = AttentionWeights<Types>;
};
template <>
struct MixerKind<MlpSpec> {
  using Names = MlpNames;
  template <typename Types>
  using Weights = MlpWeights<Types>;
};
template <>
struct MixerKind<MoeSpec> {
  using Names = MoeNames;
  template <typename Types>
  using Weights = MoeWeights<Types>;
};

}  // namespace replayssm
