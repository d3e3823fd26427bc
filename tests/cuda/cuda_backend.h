// CUDA by way of the C interface, as a backend of the suite of tests/replay.
#pragma once

#include "../replay/backend.h"

namespace replayssm::test {

const Backend& cuda_backend();

}  // namespace replayssm::test
