#include "core/arena.h"

#include <algorithm>

namespace replayssm {

void* Arena::take(const char* purpose, int64_t bytes) {
  const int64_t at = used_, rounded = (bytes + alignment_ - 1) / alignment_ * alignment_;
  used_ += rounded;
  const auto same =
      std::ranges::find_if(use_, [&](const auto& known) { return known.first == purpose; });
  if (same == use_.end()) {
    use_.emplace_back(purpose, rounded);
  } else {
    same->second += rounded;
  }
  return rounded == 0 ? nullptr : place(at, rounded);
}

void* HostArena::place(int64_t, int64_t bytes) {
  return pieces_.emplace_back(static_cast<size_t>(bytes)).data();
}

}  // namespace replayssm
