#include "runtime/cuda/backend_cuda.h"

#include "cli/common.h"

namespace replayssm::cli {

BackendFactory backend_of(const std::string& device, bool exact, const std::string& folder,
                          const ops::Context& context) {
  if (device == "cpu") return cpu_backend(context);
  if (device == "cuda") return cuda_backend(folder, exact);
  throw UsageError(concat("--device ", device, ": must be cpu or cuda"));
}

}  // namespace replayssm::cli
