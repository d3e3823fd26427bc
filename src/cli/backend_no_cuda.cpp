#include "cli/common.h"

namespace replayssm::cli {

BackendFactory backend_of(const std::string& device, bool, const std::string&,
                          const ops::Context& context) {
  if (device == "cpu") return cpu_backend(context);
  if (device == "cuda") {
    fail("--device cuda: this build has no CUDA backend; configure with the cuda preset");
  }
  throw UsageError(concat("--device ", device, ": must be cpu or cuda"));
}

}  // namespace replayssm::cli
