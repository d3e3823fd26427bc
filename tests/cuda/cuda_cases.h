// The problems that the CUDA kernels are tested on: their shapes, with few heads.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <ostream>
#include <string>
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

// For each entry of the instance tables a problem that takes it, by as few heads a key head as that
// needs; an entry and the one for few beside it may share it. Throws if none takes an entry. many:
// of those with a kernel for launches of many rows, with heads for two of its blocks a key head.
std::vector<Case> cuda_entries(bool many = false);

// Those of a list that have a plan.
std::vector<Case> with_plan(const std::vector<Case>& cases);
// Those of several lists; a problem may stand in more than one.
std::vector<Case> unique(std::initializer_list<std::vector<Case>> lists);

// How gtest names a case, and prints it.
std::string test_name(const testing::TestParamInfo<Case>& info);
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

}  // namespace replayssm::test
