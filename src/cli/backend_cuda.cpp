#include "runtime/cuda/backend_cuda.h"

#include "cli/common.h"

namespace replayssm::cli {

std::unique_ptr<Device> open_cuda(bool exact) { return cuda_device({.exact = exact}); }

}  // namespace replayssm::cli
