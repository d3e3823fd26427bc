#include "runtime/cuda/backend_cuda.h"

#include "cli/common.h"

namespace replayssm::cli {

std::unique_ptr<Device> DeviceFlags::open(const ops::Context& context) const {
  if (name == "cpu") return cpu_device(context);
  if (name == "cuda") return cuda_device(exact);
  throw UsageError(concat("--device ", name, ": must be cpu or cuda"));
}

}  // namespace replayssm::cli
