// A mixture's router as its ops take it.
#pragma once

#include "model/spec.h"
#include "ops/moe.h"

namespace replayssm {

// `bias` is the device's that runs it; null: none.
inline ops::Router router_of(const MoeSpec& spec, const float* bias) {
  ops::Router router;
  router.score = spec.score;
  router.n_experts = spec.n_experts;
  router.top_k = spec.top_k;
  router.n_groups = spec.n_groups;
  router.top_groups = spec.top_groups;
  router.renormalise = spec.renormalise;
  router.scale = spec.scale;
  router.bias = bias;
  return router;
}

}  // namespace replayssm
