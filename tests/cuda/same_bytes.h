// Compares device memory where it lies: pools of hundreds of megabytes stay on the device.
#pragma once

#include "device.h"

namespace replayssm::test {

// Both of one size, a multiple of four. Waits for the device.
bool same_bytes(const DeviceBuffer& a, const DeviceBuffer& b);

}  // namespace replayssm::test
