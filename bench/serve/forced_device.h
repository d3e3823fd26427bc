// A device whose model accepts as many drafts as it is told: for timing the engine at a given rate
// of acceptance. Passes run as they are; only what was drawn is told otherwise.
#pragma once

#include <functional>
#include <memory>

#include "runtime/backend.h"

namespace replayssm::bench {

// How many of a row's drafts are accepted in its pass, counted from 0.
using Acceptance = std::function<int32_t(int32_t row, int64_t pass)>;

std::unique_ptr<Device> forced_device(std::unique_ptr<Device> device, Acceptance acceptance);

}  // namespace replayssm::bench
