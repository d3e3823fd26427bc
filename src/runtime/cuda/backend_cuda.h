// Models on the device: passes of any mix of steps and sweeps. A pass is one copy down, its
// launches, one copy up and one wait; steps without a sweep beside them are graphs, all captured
// at load.
#pragma once

#include <memory>

#include "runtime/backend.h"

namespace replayssm {

// The current CUDA device. exact: the same bits whatever the windows and drafts.
std::unique_ptr<Device> cuda_device(bool exact);

}  // namespace replayssm
