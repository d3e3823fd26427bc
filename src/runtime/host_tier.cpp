#include "runtime/host_tier.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace replayssm {

bool HostTier::use(std::span<const int32_t> tokens) {
  const auto entry = entries_.find(key_of(tokens));
  if (entry == entries_.end()) return false;
  by_age_.splice(by_age_.end(), by_age_, entry->second);
  return true;
}

void HostTier::keep(SnapshotFile file, const std::function<void(const SnapshotFile&)>& gone) {
  REPLAYSSM_CHECK(file.position == std::ssize(file.tokens), "a state at ", file.position, " of ",
                  file.tokens.size(), " tokens");
  const int64_t bytes = snapshot_file_bytes(file);
  if (bytes > most_bytes_) return gone(file);
  if (use(file.tokens)) return;
  while (bytes_ + bytes > most_bytes_) {
    const Snapshot oldest = by_age_.front();
    entries_.erase(key_of(oldest->tokens));
    by_age_.pop_front();
    bytes_ -= snapshot_file_bytes(*oldest);
    gone(*oldest);
  }
  const Key key = key_of(file.tokens);
  entries_[key] =
      by_age_.insert(by_age_.end(), std::make_shared<const SnapshotFile>(std::move(file)));
  bytes_ += bytes;
}

HostTier::Snapshot HostTier::longest(std::span<const int32_t> tokens, int64_t more_than,
                                     int64_t limit) {
  limit = std::min(limit, std::ssize(tokens));
  auto it = entries_.upper_bound({limit, std::numeric_limits<uint64_t>::max()});
  while (it != entries_.begin()) {
    const int64_t position = std::prev(it)->first.first;
    if (position <= more_than) break;
    const auto begin = tokens.first(static_cast<size_t>(position));
    const auto entry = entries_.find(key_of(begin));
    // The key is a hash: the text decides.
    if (entry != entries_.end() && std::ranges::equal((*entry->second)->tokens, begin)) {
      use(begin);
      return *entry->second;
    }
    it = entries_.lower_bound({position, 0});
  }
  return nullptr;
}

}  // namespace replayssm
