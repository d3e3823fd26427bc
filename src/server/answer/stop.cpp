#include "server/answer/stop.h"

#include <algorithm>
#include <utility>

namespace replayssm::server {

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  if (stops_.empty()) return std::string(text);
  for (const char c : text) {
    held_ += c;
    size_t cut = 0;
    for (const auto& stop : stops_) {
      if (held_.ends_with(stop)) cut = std::max(cut, stop.size());
    }
    if (cut > 0) {
      stopped_ = true;
      found_ = held_.substr(held_.size() - cut);
      held_.resize(held_.size() - cut);
      return std::exchange(held_, {});
    }
  }
  const size_t keep = held_prefix();
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return certain;
}

// The length of the longest end of held_ that some stop string starts with.
size_t StopMatcher::held_prefix() const {
  size_t longest = 0;
  for (const auto& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > longest; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

std::string StopMatcher::finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }

}  // namespace replayssm::server
