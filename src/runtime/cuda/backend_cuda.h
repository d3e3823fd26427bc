// Models on the device: passes of any mix of steps and sweeps. A pass is one copy down, its
// launches, one copy up and one wait; drawing, verification and acceptance are among the launches.
// Steps without a sweep beside them are graphs, all captured at load. A pass may be launched while
// the one before it runs, and take its tokens where that one draws them.
#pragma once

#include <memory>

#include "model/cuda/weight_source.h"
#include "runtime/backend.h"

namespace replayssm {

struct CudaDeviceOptions {
  bool exact = false;  // the same bits whatever the windows and drafts
  OpenWeights weights = file_weights;
};

// The current CUDA device.
std::unique_ptr<Device> cuda_device(const CudaDeviceOptions& options);

}  // namespace replayssm
