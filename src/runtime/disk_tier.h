// Snapshots and sessions in a folder, within a byte cap: the snapshots that were not used for
// longest go first; sessions stay until they are dropped. A folder may serve several models: each
// sees its own files. One process at a time writes to a folder.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "runtime/snapshot_file.h"

namespace replayssm {

class DiskTier {
 public:
  // Makes the folder if it is not there. Throws Error naming it.
  DiskTier(const std::string& folder, int64_t most_bytes, SnapshotFormat format);

  bool has(std::span<const int32_t> tokens) const;
  // Keeps the state after all of file.tokens. A folder that cannot be written keeps nothing.
  void keep(const SnapshotFile& file);
  // The longest kept beginning of `tokens` that is longer than `more_than` and at most `limit`.
  // Files that are not as they were written are deleted, counted and passed over.
  std::optional<SnapshotFile> longest(std::span<const int32_t> tokens, int64_t more_than,
                                      int64_t limit);

  // Throw Error: the name is bad, the file cannot be written, or is not as written.
  void save_session(const std::string& name, const SnapshotFile& file);
  // Nothing if there is none.
  std::optional<SnapshotFile> load_session(const std::string& name);
  // False if there is none.
  bool drop_session(const std::string& name);
  std::set<std::string> session_names() const;

  int64_t n_refused() const { return n_refused_; }

 private:
  struct Key {
    int64_t position;
    uint64_t hash;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    std::list<Key>::iterator age;
    int64_t bytes;
  };

  std::string path_of(const Key& key) const;
  std::string session_path(const std::string& name) const;
  void scan();
  void forget(const Key& key);
  void make_room(int64_t bytes);

  std::string folder_;
  int64_t most_bytes_;
  SnapshotFormat format_;
  std::map<Key, Entry> entries_;
  std::list<Key> by_age_;  // longest unused first
  int64_t bytes_ = 0;      // of snapshots and sessions
  int64_t n_refused_ = 0;
};

}  // namespace replayssm
