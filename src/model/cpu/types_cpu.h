// What a model is made of on the CPU.
#pragma once

#include <vector>

#include "model/layer_plans.h"
#include "model/weights.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "replay/kernels.h"

namespace replayssm {

struct CpuTypes {
  using Linear = ops::Linear;
  using Experts = std::vector<MlpWeights<CpuTypes>>;
  using Plan = replayssm::Plan;
  using ConvPlan = replayssm::ConvPlan;
  using KvShape = ops::KvShape;
};

using CpuLayers = LayerPlans<CpuTypes>;
using CpuWeights = ModelWeights<CpuTypes>;

// Throws Error if a layer cannot run.
CpuLayers plan_layers_cpu(const Model& model, Isa isa);

}  // namespace replayssm
