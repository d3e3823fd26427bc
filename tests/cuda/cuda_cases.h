// The problems that the CUDA kernels are tested on: their shapes, with few heads.
#pragma once

#include <vector>

#include "../replay/cases.h"
#include "replay/conv.h"

namespace replayssm::test {

// Those of any backend's tests, brought to the nearest shape and dtypes of a kernel.
Problem cuda_fit(Problem p);
ConvProblem cuda_fit(ConvProblem p);

// Everything that may be asked for; a plan's reason decides, see plans_test.cpp.
std::vector<Case> cuda_shapes();
std::vector<Case> cuda_dtypes();
std::vector<Case> cuda_core();

// Those of a list that have a plan.
std::vector<Case> with_plan(const std::vector<Case>& cases);

}  // namespace replayssm::test
