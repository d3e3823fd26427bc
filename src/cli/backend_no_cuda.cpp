#include "cli/common.h"

namespace replayssm::cli {

std::unique_ptr<Device> open_cuda(bool) {
  fail("--device cuda: this build has no CUDA backend; configure with the cuda preset");
}

}  // namespace replayssm::cli
