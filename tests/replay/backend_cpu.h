// The CPU backend, one for each instruction set.
#pragma once

#include "backend.h"

namespace replayssm::test {

// The set must be supported.
const Backend& cpu_backend(Isa isa);

}  // namespace replayssm::test
