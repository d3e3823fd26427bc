// The mixture-of-experts mixer on the device: ops/moe.h's steps over the tokens of a pass.
#pragma once

#include <cstdint>

#include "core/cuda/device.h"
#include "model/cuda/branch_cuda.h"
#include "model/cuda/weights_cuda.h"
#include "model/spec.h"
#include "ops/cuda/context_cuda.h"
#include "ops/cuda/moe_cuda.h"
#include "ops/matrix.h"

namespace replayssm {

// Places for `max_tokens` tokens; a token counts top_k times where it stands with its experts.
struct MoeScratchCuda {
  float *logits = nullptr, *weights = nullptr;
  int32_t *experts = nullptr, *row = nullptr;
  void *spread = nullptr, *inner = nullptr, *y = nullptr;                // bf16, or quantised
  void *latent = nullptr, *shared_inner = nullptr, *shared_y = nullptr;  // bf16
  float *out = nullptr, *latent_sum = nullptr, *shared_out = nullptr;

  static MoeScratchCuda take(const MoeSpec& spec, int64_t max_tokens, DeviceArena& arena);
};

// Adds the mixer's output to the residual stream. in: bf16 [tokens, hidden]. first [n_experts + 1]:
// the layer's own, so that it tells after the pass how the rows went to the experts. A shared
// expert runs on the branch. `then`: the norm of the stream, for what comes next; y.data null:
// none. `products` and `others`: which launches are made, for timing.
void run_moe(const ops::cuda::CudaContext& context, BranchCuda& branch, const MoeSpec& spec,
             const MoeWeightsCuda& weights, const MoeScratchCuda& scratch, int32_t* first,
             ops::ConstMatrix in, ops::Matrix residual, const ops::cuda::NormedOutput& then,
             bool products, bool others);

}  // namespace replayssm
