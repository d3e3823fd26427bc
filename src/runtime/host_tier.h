// Snapshots in host memory, within a byte cap: what a device's memory gave up. Those that were not
// used for longest go first.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "runtime/snapshot_file.h"

namespace replayssm {

class HostTier {
 public:
  explicit HostTier(int64_t most_bytes) : most_bytes_(most_bytes) {}

  using Snapshot = std::shared_ptr<const SnapshotFile>;

  // Whether the state after `tokens` is kept; it counts as used now.
  bool use(std::span<const int32_t> tokens);
  // Keeps the state after all of file.tokens. `gone` is told of those that had to go for it, or of
  // the file itself if it is larger than the cap.
  void keep(SnapshotFile file, const std::function<void(const SnapshotFile&)>& gone);
  // The longest kept beginning of `tokens` that is longer than `more_than` and at most `limit`;
  // null if there is none.
  Snapshot longest(std::span<const int32_t> tokens, int64_t more_than, int64_t limit);

  // Longest unused first.
  const std::list<Snapshot>& all() const { return by_age_; }
  int64_t bytes() const { return bytes_; }

 private:
  using Key = std::pair<int64_t, uint64_t>;  // position, hash of the tokens
  static Key key_of(std::span<const int32_t> tokens) {
    return {std::ssize(tokens), hash_tokens(tokens)};
  }

  int64_t most_bytes_;
  std::list<Snapshot> by_age_;
  std::map<Key, std::list<Snapshot>::iterator> entries_;
  int64_t bytes_ = 0;
};

}  // namespace replayssm
