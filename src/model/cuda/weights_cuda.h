// A model's weights on the device, as ops/cuda takes them. All pointers are the device's.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "core/cuda/device.h"
#include "model/cuda/weight_source.h"
#include "model/families/family.h"
#include "ops/cuda/linear_cuda.h"
#include "ops/cuda/moe_cuda.h"

namespace replayssm {

struct Mamba2WeightsCuda {
  ops::cuda::LinearCuda in_zx;  // hidden -> z [inner] | x B C [conv_channels]
  ops::cuda::LinearCuda in_dt;  // hidden -> dt [n_heads]
  const float* conv_weight = nullptr;
  const float* conv_bias = nullptr;  // or null
  const float *a_log = nullptr, *skip = nullptr, *dt_bias = nullptr, *norm = nullptr;
  ops::cuda::LinearCuda out;
};

struct GdnWeightsCuda {
  ops::cuda::LinearCuda in_qkvz;  // hidden -> q k v [conv_channels] | z [value_size]
  ops::cuda::LinearCuda in_ba;    // hidden -> b | a, [n_value_heads] each
  const float* conv_weight = nullptr;
  const float *a_log = nullptr, *dt_bias = nullptr, *norm = nullptr;
  ops::cuda::LinearCuda out;
};

struct AttentionWeightsCuda {
  ops::cuda::LinearCuda in_qkv;  // hidden -> q (a head: [q | gate] with output_gate) | k | v
  const float *q_norm = nullptr, *k_norm = nullptr;  // or null
  ops::cuda::LinearCuda out;
};

struct MlpWeightsCuda {
  ops::cuda::LinearCuda in;  // hidden -> gate [ff] | up [ff], or up alone
  ops::cuda::LinearCuda down;
};

// Products of other numbers of outputs are slow.
constexpr int64_t kPaddedOutputs = 8;

struct MoeWeightsCuda {
  ops::cuda::LinearCuda router;        // hidden -> n_experts | the shared expert's gate, and zeros
  const float* router_bias = nullptr;  // or null
  ops::cuda::ExpertsCuda in, down;     // as MlpWeightsCuda's, a stack of all experts
  MlpWeightsCuda shared;               // or empty
  ops::cuda::LinearCuda latent_in, latent_out;
};

struct MixerWeightsCuda {
  const float* norm = nullptr;
  std::variant<Mamba2WeightsCuda, GdnWeightsCuda, AttentionWeightsCuda, MlpWeightsCuda,
               MoeWeightsCuda>
      mixer;
};

struct ModelWeightsCuda {
  const void* embedding = nullptr;  // [vocab, hidden] bf16; tied: the head's
  ops::cuda::LinearCuda head;
  const float* final_norm = nullptr;
  std::vector<std::vector<MixerWeightsCuda>> mixers;  // [layer][mixer]; a layer has one at least

  // The mixer after mixers[i][j]; null after the last.
  const MixerWeightsCuda* after(size_t i, size_t j) const {
    if (j + 1 < mixers[i].size()) return &mixers[i][j + 1];
    return i + 1 < mixers.size() ? &mixers[i + 1].front() : nullptr;
  }
};

// Takes the memory from the arena and fills it from the source; with an arena that counts nothing
// but types is read. Gates, routers, the embedding and the output head are bf16. The model is one
// that plan_model() takes.
ModelWeightsCuda take_weights(const ModelDescription& model, DeviceArena& arena,
                              WeightSource& source);

}  // namespace replayssm
