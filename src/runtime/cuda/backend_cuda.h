// The backend of Runner on the device: passes of any mix of steps and sweeps, without graphs, their
// logits copied to the host.
#pragma once

#include <string>

#include "runtime/backend.h"

namespace replayssm {

// For models of `folder`, which is read again for the device's copy of the weights. exact: as
// DecodeCudaOptions.
BackendFactory cuda_backend(const std::string& folder, bool exact);

}  // namespace replayssm
