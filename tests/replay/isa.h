// Tests that run once for each instruction set of this machine.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "replay/kernels.h"

namespace replayssm::test {

inline std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa_supported(isa)) isas.push_back(isa);
  }
  return isas;
}

class EachIsa : public testing::TestWithParam<Isa> {
 protected:
  Isa isa() const { return GetParam(); }
};

inline std::string isa_text(Isa isa) {
  return isa == Isa::kAvx512 ? "avx512" : isa == Isa::kAvx2 ? "avx2" : "portable";
}
inline std::string isa_test_name(const testing::TestParamInfo<Isa>& info) {
  return isa_text(info.param);
}

#define REPLAYSSM_EACH_ISA(suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(Cpu, suite, testing::ValuesIn(::replayssm::test::supported_isas()), \
                           ::replayssm::test::isa_test_name)

}  // namespace replayssm::test
