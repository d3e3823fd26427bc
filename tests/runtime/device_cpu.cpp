#include "test_device.h"

namespace replayssm {

std::unique_ptr<Device> open_device(const ops::Context& context) { return cpu_device(context); }

std::vector<int32_t> device_intervals() { return {8, 16, 32}; }

int64_t device_overhead_bytes() { return 0; }

}  // namespace replayssm
