// What a power cut leaves of the files of sessions. This binary's own rename and fsync stand
// before the C library's and note what the disk must hold by then: bytes that were not synced may
// be lost, shortened or zero; a name that was not synced may still point at what it did before.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "../model/testing.h"
#include "core/error.h"
#include "runtime/disk_tier.h"

namespace {

namespace fs = std::filesystem;
using Folder = std::map<std::string, std::string>;  // names and bytes

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The folder under test, as the disk may hold it.
struct Disk {
  std::string folder;                                      // empty: nothing is noted
  Folder names;                                            // what is sure
  std::map<std::string, std::string> synced;               // bytes by path
  std::map<std::string, std::vector<std::string>> unsure;  // names that may point at these too
  std::vector<Folder> states;                              // after a cut at any time so far

  void note() {
    std::vector<Folder> all = {names};
    for (const auto& [name, contents] : unsure) {
      std::vector<Folder> more;
      for (const Folder& state : all) {
        for (const std::string& content : contents) {
          more.push_back(state);
          more.back()[name] = content;
        }
      }
      all.insert(all.end(), more.begin(), more.end());
    }
    states.insert(states.end(), all.begin(), all.end());
  }

  void renamed(const std::string& from, const std::string& to) {
    const std::string now = bytes_of(to);
    std::vector<std::string>& contents = unsure[fs::path(to).filename()];
    contents = {now};
    if (synced[from] != now) {
      contents.insert(contents.end(),
                      {"", now.substr(0, now.size() / 2), std::string(now.size(), 0)});
    }
    note();
  }
  void folder_synced() {
    // Of names with several contents the first is as good as any: the others were noted.
    for (const auto& [name, contents] : unsure) names[name] = contents.back();
    unsure.clear();
    states.push_back(names);
  }
};

Disk disk;

}  // namespace

extern "C" [[gnu::visibility("default")]] int rename(const char* from, const char* to) noexcept {
  static const auto real =
      reinterpret_cast<int (*)(const char*, const char*)>(dlsym(RTLD_NEXT, "rename"));
  const int result = real(from, to);
  if (result == 0 && !disk.folder.empty()) disk.renamed(from, to);
  return result;
}

extern "C" [[gnu::visibility("default")]] int fsync(int fd) {
  static const auto real = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fsync"));
  if (!disk.folder.empty()) {
    const std::string path = fs::read_symlink("/proc/self/fd/" + std::to_string(fd));
    if (fs::is_directory(path)) {
      disk.folder_synced();
    } else {
      disk.synced[path] = bytes_of(path);
    }
  }
  return real(fd);
}

namespace replayssm {
namespace {

SnapshotFormat format() {
  SnapshotFormat format;
  format.fingerprint = 0x1234;
  format.max_positions = 64;
  format.state_bytes = [](int64_t) { return int64_t{100000}; };
  return format;
}

SnapshotFile file(int32_t first) {
  SnapshotFile file;
  file.tokens = {first, 2, 3};
  file.position = 3;
  file.state.resize(100000, std::byte(first));
  return file;
}

// The first token of session "s" in each state; -1: there is none, -2: it is refused.
std::map<int32_t, int> sessions_after_cuts() {
  std::map<int32_t, int> found;
  for (const Folder& state : std::exchange(disk.states, {})) {
    const TempFolder copy;
    for (const auto& [name, bytes] : state) {
      std::ofstream(copy.file(name), std::ios::binary) << bytes;
    }
    DiskTier tier(copy.path(), 1 << 20, format());
    int32_t first = -1;
    try {
      if (const auto loaded = tier.load_session("s")) first = loaded->tokens[0];
    } catch (const Error&) {
      first = -2;
    }
    ++found[first];
  }
  return found;
}

TEST(PowerCut, ASessionIsTheOldOneOrTheNewOneAndTheNewOneOnceItIsSaved) {
  const TempFolder folder;
  DiskTier tier(folder.path(), 1 << 20, format());
  disk = {};
  disk.folder = folder.path();
  tier.save_session("s", file(1));
  auto found = sessions_after_cuts();
  EXPECT_GT(found[1], 0);
  EXPECT_EQ(found[-2], 0) << "a torn file bears the session's name";
  disk.note();
  EXPECT_EQ(sessions_after_cuts(), (std::map<int32_t, int>{{1, 1}})) << "saved, and then lost";
  tier.save_session("s", file(2));
  found = sessions_after_cuts();
  EXPECT_GT(found[1] + found[2], 0);
  EXPECT_EQ(found[-1] + found[-2], 0) << "neither the old session nor the new one is left";
  disk.note();
  EXPECT_EQ(sessions_after_cuts(), (std::map<int32_t, int>{{2, 1}})) << "saved, and then lost";
  disk.folder.clear();
}

// A cached snapshot may be lost, and is never half there.
TEST(PowerCut, ASnapshotIsWholeOrGone) {
  const TempFolder folder;
  DiskTier tier(folder.path(), 1 << 20, format());
  disk = {};
  disk.folder = folder.path();
  tier.keep(file(7));
  for (const Folder& state : std::exchange(disk.states, {})) {
    const TempFolder copy;
    for (const auto& [name, bytes] : state) {
      std::ofstream(copy.file(name), std::ios::binary) << bytes;
    }
    DiskTier after(copy.path(), 1 << 20, format());
    const auto found = after.longest(file(7).tokens, 0, 3);
    EXPECT_EQ(after.n_refused(), 0);
    EXPECT_TRUE(!found || found->state == file(7).state);
  }
  disk.folder.clear();
}

}  // namespace
}  // namespace replayssm
