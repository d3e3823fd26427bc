// The part of the suite that runs here runs over the C interface.
#include "capi_backend.h"

namespace replayssm::test {

const std::vector<const Backend*>& backends() {
  static const std::vector<const Backend*> all = {&capi_backend()};
  return all;
}

}  // namespace replayssm::test
