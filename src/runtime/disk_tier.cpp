#include "runtime/disk_tier.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "runtime/checksum.h"

namespace replayssm {
namespace fs = std::filesystem;
namespace {

constexpr size_t kLongestName = 100;

int64_t size_of(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
}

// What DiskTier::session_path made of it.
std::string unescaped(const std::string& safe) {
  std::string name;
  for (size_t i = 0; i < safe.size(); ++i) {
    unsigned byte = 0;
    if (safe[i] == '%' && std::sscanf(safe.c_str() + i, "%%%2x", &byte) == 1) {
      name += static_cast<char>(byte);
      i += 2;
    } else {
      name += safe[i];
    }
  }
  return name;
}

}  // namespace

DiskTier::DiskTier(const std::string& folder, int64_t most_bytes, SnapshotFormat format)
    : folder_(folder), most_bytes_(most_bytes), format_(std::move(format)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (!fs::is_directory(folder_)) fail("cache folder ", folder_, ": cannot be made");
  scan();
  make_room(0);
}

std::string DiskTier::path_of(const Key& key) const {
  return concat(folder_, "/", hex(format_.fingerprint), "-", key.position, "-", hex(key.hash),
                ".snapshot");
}

// Any name of a session makes a good name of a file.
std::string DiskTier::session_path(const std::string& name) const {
  if (name.empty() || name.size() > kLongestName) {
    fail("a session's name has 1 to ", kLongestName, " bytes, not ", name.size());
  }
  std::string safe;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_';
    char escaped[4];
    std::snprintf(escaped, sizeof escaped, "%%%02x", static_cast<unsigned char>(c));
    safe += plain ? std::string(1, c) : escaped;
  }
  return concat(folder_, "/", hex(format_.fingerprint), "-", safe, ".session");
}

// Takes in what the folder holds for this model, oldest first.
void DiskTier::scan() {
  const std::string mine = hex(format_.fingerprint) + "-";
  std::vector<std::pair<fs::file_time_type, Key>> found;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(mine)) continue;
    Key key{};
    int used = 0;
    const char* rest = name.c_str() + mine.size();
    if (std::sscanf(rest, "%" SCNd64 "-%16" SCNx64 ".snapshot%n", &key.position, &key.hash,
                    &used) == 2 &&
        used > 0 && rest[used] == '\0' && path_of(key) == it->path().string()) {
      std::error_code no_time;
      found.emplace_back(it->last_write_time(no_time), key);
    } else if (name.ends_with(".session")) {
      bytes_ += size_of(it->path());
    } else if (name.ends_with(".tmp")) {
      remove_file(it->path());  // a write that was cut off
    }
  }
  std::ranges::sort(found);
  for (const auto& [time, key] : found) {
    const int64_t bytes = size_of(path_of(key));
    entries_[key] = {by_age_.insert(by_age_.end(), key), bytes};
    bytes_ += bytes;
  }
}

void DiskTier::forget(const Key& key) {
  const auto entry = entries_.find(key);
  remove_file(path_of(key));
  bytes_ -= entry->second.bytes;
  by_age_.erase(entry->second.age);
  entries_.erase(entry);
}

void DiskTier::make_room(int64_t bytes) {
  while (bytes_ + bytes > most_bytes_ && !by_age_.empty()) forget(Key(by_age_.front()));
}

bool DiskTier::has(std::span<const int32_t> tokens) const {
  return entries_.contains({std::ssize(tokens), hash_tokens(tokens)});
}

void DiskTier::keep(const SnapshotFile& file) {
  REPLAYSSM_CHECK(file.position == std::ssize(file.tokens), "a state at ", file.position, " of ",
                  file.tokens.size(), " tokens");
  const int64_t bytes = snapshot_file_bytes(file);
  const Key key{file.position, hash_tokens(file.tokens)};
  if (bytes > most_bytes_ || entries_.contains(key)) return;
  make_room(bytes);
  if (bytes_ + bytes > most_bytes_) return;  // sessions fill the folder
  try {
    write_snapshot_file(path_of(key), format_, file);
  } catch (const Error&) {
    return;
  }
  entries_[key] = {by_age_.insert(by_age_.end(), key), bytes};
  bytes_ += bytes;
}

std::optional<SnapshotFile> DiskTier::longest(std::span<const int32_t> tokens, int64_t more_than,
                                              int64_t limit) {
  std::set<int64_t> positions;
  for (const auto& entry : entries_) positions.insert(entry.first.position);
  limit = std::min(limit, std::ssize(tokens));
  for (auto it = positions.rbegin(); it != positions.rend() && *it > more_than; ++it) {
    if (*it > limit) continue;
    const auto begin = tokens.first(static_cast<size_t>(*it));
    const Key key{*it, hash_tokens(begin)};
    const auto entry = entries_.find(key);
    if (entry == entries_.end()) continue;
    try {
      SnapshotFile file = read_snapshot_file(path_of(key), format_);
      // The name is a hash: the text decides.
      if (file.position != *it || !std::ranges::equal(file.tokens, begin)) continue;
      std::error_code error;
      fs::last_write_time(path_of(key), fs::file_time_type::clock::now(), error);
      by_age_.splice(by_age_.end(), by_age_, entry->second.age);
      return file;
    } catch (const Error&) {
      ++n_refused_;
      forget(key);
    }
  }
  return std::nullopt;
}

void DiskTier::save_session(const std::string& name, const SnapshotFile& file) {
  const std::string path = session_path(name);
  const int64_t bytes = snapshot_file_bytes(file), old = size_of(path);
  make_room(bytes - old);
  if (bytes_ - old + bytes > most_bytes_) {
    fail("session \"", name, "\" takes ", bytes, " bytes; sessions already fill ", bytes_, " of ",
         most_bytes_);
  }
  write_snapshot_file(path, format_, file);
  bytes_ += bytes - old;
}

std::optional<SnapshotFile> DiskTier::load_session(const std::string& name) {
  const std::string path = session_path(name);
  if (!fs::exists(path)) return std::nullopt;
  try {
    return read_snapshot_file(path, format_);
  } catch (const Error&) {
    ++n_refused_;
    throw;
  }
}

bool DiskTier::drop_session(const std::string& name) {
  const std::string path = session_path(name);
  if (!fs::exists(path)) return false;
  bytes_ -= size_of(path);
  remove_file(path);
  sync_folder(folder_);
  return true;
}

std::set<std::string> DiskTier::session_names() const {
  constexpr std::string_view kEnd = ".session";
  const std::string mine = hex(format_.fingerprint) + "-";
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string file = it->path().filename().string();
    if (!file.starts_with(mine) || !file.ends_with(kEnd)) continue;
    names.insert(unescaped(file.substr(mine.size(), file.size() - mine.size() - kEnd.size())));
  }
  return names;
}

}  // namespace replayssm
