// This binary's backends: every instruction set of this machine.
#include "backend_cpu.h"
#include "isa.h"

namespace replayssm::test {

const std::vector<const Backend*>& backends() {
  static const std::vector<const Backend*> all = [] {
    std::vector<const Backend*> out;
    for (Isa isa : supported_isas()) out.push_back(&cpu_backend(isa));
    return out;
  }();
  return all;
}

}  // namespace replayssm::test
