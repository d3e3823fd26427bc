#include "replay/capi/error.h"

#include <cstdarg>
#include <cstdio>

namespace replayssm::capi {
namespace {

thread_local char line[512] = "";

}  // namespace

rssm_status fail(rssm_status status, const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof(line), format, args);
  va_end(args);
  return status;
}

const char* last_error() { return line; }

}  // namespace replayssm::capi
