// Compares device memory where it lies: pools of hundreds of megabytes stay on the device.
#pragma once

#include "device.h"

namespace replayssm::test {

// Sets *differ, on the device, if the two are not the same; does not wait. Both of one size, a
// multiple of four.
void compare_bytes(const DeviceBuffer& a, const DeviceBuffer& b, int* differ);

}  // namespace replayssm::test
