// Models on the device: passes of any mix of steps and sweeps, without graphs, their logits copied
// to the host.
#pragma once

#include <memory>

#include "runtime/backend.h"

namespace replayssm {

// The current CUDA device. exact: as DecodeCudaOptions.
std::unique_ptr<Device> cuda_device(bool exact);

}  // namespace replayssm
