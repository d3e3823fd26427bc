// Routers of every kind, for the tests of each backend.
#pragma once

#include <vector>

#include "ops/moe.h"

namespace replayssm::ops {

inline Router router_of(RouterScore score, int32_t n_experts, int32_t top_k) {
  Router router;
  router.score = score;
  router.n_experts = n_experts;
  router.top_k = top_k;
  return router;
}

// Softmax and sigmoid, with and without bias, groups and renormalisation. bias: [512], must outlive
// them.
inline std::vector<Router> routers_to_try(const std::vector<float>& bias) {
  std::vector<Router> routers = {
      router_of(RouterScore::kSoftmax, 1, 1), router_of(RouterScore::kSoftmax, 256, 8),
      router_of(RouterScore::kSoftmax, 7, 7), router_of(RouterScore::kSigmoid, 64, 6)};
  routers.push_back(router_of(RouterScore::kSoftmax, 512, 10));
  routers.back().renormalise = false;
  routers.push_back(router_of(RouterScore::kSigmoid, 512, 22));
  routers.back().bias = bias.data();
  routers.back().scale = 5.0f;
  routers.push_back(router_of(RouterScore::kSigmoid, 96, 4));
  routers.back().bias = bias.data();
  routers.back().n_groups = 8;
  routers.back().top_groups = 3;
  routers.back().renormalise = false;
  return routers;
}

}  // namespace replayssm::ops
