// The calling thread's last error line.
#pragma once

#include <replayssm/replayssm.h>

namespace replayssm::capi {

// Keeps the line for rssm_last_error() and returns `status`. Allocates nothing.
[[gnu::format(printf, 2, 3)]] rssm_status fail(rssm_status status, const char* format, ...);
const char* last_error();

}  // namespace replayssm::capi
