// The kernel of fp32 activations: any shape, slow.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "replay/step.h"

namespace replayssm::cuda {

// Why it does not support a valid problem; empty if it does.
std::string general_reason(const Problem& problem);

void launch_general(const StepArgs& args, const Problem& problem, bool sweep, cudaStream_t stream);

}  // namespace replayssm::cuda
