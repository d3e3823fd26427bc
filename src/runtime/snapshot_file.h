// A text and a state of it on disk. A file that is not exactly as it was written is refused: magic,
// version, sizes and a checksum over every byte are checked, and no size in a file is believed
// before it equals what the model says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/memory.h"

namespace replayssm {

using StateBytes = std::vector<std::byte, PageAllocator<std::byte>>;

struct SnapshotFile {
  std::vector<int32_t> tokens;  // the text
  int64_t position = 0;         // the state is that after so many tokens; 0: there is none
  StateBytes state;             // Executor::read_snapshot
};

// What a file must agree with.
struct SnapshotFormat {
  uint64_t fingerprint = 0;  // of the model and its arithmetic
  int64_t max_positions = 0;
  std::function<int64_t(int64_t position)> state_bytes;
};

// XXH3, 64 bits.
uint64_t hash_tokens(std::span<const int32_t> tokens);

int64_t snapshot_file_bytes(const SnapshotFile& file);

// Makes what was renamed or removed in the folder outlast a power cut, as far as the file system
// can.
void sync_folder(const std::string& folder);

// Writes beside the place, syncs, then renames: a reader sees all or nothing, after a power cut
// too. Throws Error naming the file.
void write_snapshot_file(const std::string& path, const SnapshotFormat& format,
                         const SnapshotFile& file);

// Throws Error naming the file and what is wrong with it.
SnapshotFile read_snapshot_file(const std::string& path, const SnapshotFormat& format);

}  // namespace replayssm
