// A model's weights on the device, as ops/cuda takes them.
#pragma once

#include "core/arena.h"
#include "model/cuda/types_cuda.h"
#include "model/cuda/weight_source.h"

namespace replayssm {

// Takes the memory from the arena and fills it from the source; with an arena that counts nothing
// but types is read. Gates, routers, the embedding and the output head are bf16. The model is one
// that plan_layers_cuda() takes.
CudaWeights take_weights_cuda(const ModelDescription& model, Arena& arena, WeightSource& source);

}  // namespace replayssm
