// The geometry of a recurrent mixer as its kernels' problem; the rest of it is the backend's.
#pragma once

#include "model/spec.h"
#include "replay/step.h"

namespace replayssm {

inline Problem shape_of(const Mamba2Spec& mamba) {
  Problem problem;
  problem.family = Family::kMamba2;
  problem.n_heads = mamba.n_heads;
  problem.n_key_heads = mamba.n_groups;
  problem.value_dim = mamba.head_dim;
  problem.key_dim = mamba.state_dim;
  return problem;
}

inline Problem shape_of(const GdnSpec& gdn) {
  Problem problem;
  problem.family = Family::kGdn;
  problem.n_heads = gdn.n_value_heads;
  problem.n_key_heads = gdn.n_key_heads;
  problem.value_dim = gdn.value_dim;
  problem.key_dim = gdn.key_dim;
  return problem;
}

}  // namespace replayssm
