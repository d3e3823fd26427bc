// What a model is made of on the device.
#pragma once

#include "model/layer_plans.h"
#include "model/weights.h"
#include "ops/cuda/attention_cuda.h"
#include "ops/cuda/linear_cuda.h"
#include "ops/cuda/moe_cuda.h"
#include "replay/cuda/conv_cuda.h"
#include "replay/cuda/kernels_cuda.h"

namespace replayssm {

struct CudaTypes {
  using Linear = ops::cuda::LinearCuda;
  struct Experts {
    ops::cuda::ExpertsCuda in, down;  // a stack of all experts each
  };
  using Plan = CudaPlan;
  using ConvPlan = CudaConvPlan;
  using KvShape = ops::cuda::KvShapeCuda;
};

using CudaLayers = LayerPlans<CudaTypes>;
using CudaWeights = ModelWeights<CudaTypes>;

// Rings of whole grid intervals, so that an interval's rows are contiguous. Throws Error, saying
// why, if the model cannot run on CUDA.
CudaLayers plan_layers_cuda(const Model& model);

}  // namespace replayssm
