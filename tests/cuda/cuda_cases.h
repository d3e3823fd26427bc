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

// For each entry of the instance tables a problem that uses it, with as few heads per key head as
// possible; an entry and its small-grid variant may share one. Throws if no problem uses an entry.
// persistent: only entries with a persistent kernel, with two of its row blocks per key head.
std::vector<Case> cuda_entries(bool persistent = false);

// Those of a list that have a plan.
std::vector<Case> with_plan(const std::vector<Case>& cases);
// The cases of several lists; a problem may be in more than one.
std::vector<Case> unique(std::initializer_list<std::vector<Case>> lists);

// How gtest names a case, and prints it.
std::string test_name(const testing::TestParamInfo<Case>& info);
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

}  // namespace replayssm::test
