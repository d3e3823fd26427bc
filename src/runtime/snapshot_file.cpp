#include "runtime/snapshot_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "core/error.h"
#include "runtime/checksum.h"

namespace replayssm {
namespace {

constexpr char kMagic[8] = {'R', 'S', 'S', 'M', 'S', 'N', 'A', 'P'};
constexpr uint32_t kVersion = 1;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint64_t fingerprint;
  int64_t n_tokens;
  int64_t position;
  int64_t state_bytes;
};
static_assert(sizeof(Header) == 48);

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

}  // namespace

void sync_folder(const std::string& folder) {
  const int fd = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

uint64_t hash_tokens(std::span<const int32_t> tokens) {
  return XXH3_64bits(tokens.data(), tokens.size_bytes());
}

int64_t snapshot_file_bytes(const SnapshotFile& file) {
  return static_cast<int64_t>(sizeof(Header) + file.tokens.size() * sizeof(int32_t) +
                              file.state.size() + sizeof(uint64_t));
}

void write_snapshot_file(const std::string& path, const SnapshotFormat& format,
                         const SnapshotFile& file) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.header_bytes = sizeof header;
  header.fingerprint = format.fingerprint;
  header.n_tokens = static_cast<int64_t>(file.tokens.size());
  header.position = file.position;
  header.state_bytes = static_cast<int64_t>(file.state.size());

  const std::string beside = concat(path, ".", getpid(), ".tmp");
  File out(std::fopen(beside.c_str(), "wb"));
  if (out == nullptr) fail("cannot write ", beside, ": ", std::strerror(errno));
  Checksum sum;
  bool good = true;
  const auto put = [&](const void* data, size_t n_bytes) {
    if (n_bytes == 0) return;
    sum.add(data, n_bytes);
    good = good && std::fwrite(data, 1, n_bytes, out.get()) == n_bytes;
  };
  put(&header, sizeof header);
  put(file.tokens.data(), file.tokens.size() * sizeof(int32_t));
  put(file.state.data(), file.state.size());
  const uint64_t checksum = sum.value();
  good = good && std::fwrite(&checksum, sizeof checksum, 1, out.get()) == 1;
  // The bytes are on the disk before the name points at them, so that a power cut leaves the old
  // file or the new one; the name is, before the caller is told.
  good = good && std::fflush(out.get()) == 0 && fsync(fileno(out.get())) == 0;
  good = std::fclose(out.release()) == 0 && good;
  std::error_code error;
  if (good) std::filesystem::rename(beside, path, error);
  if (good && !error) {
    sync_folder(std::filesystem::path(path).parent_path().string());
    return;
  }
  const std::string why = error ? error.message() : std::strerror(errno);
  std::filesystem::remove(beside, error);
  fail("cannot write ", path, ": ", why);
}

SnapshotFile read_snapshot_file(const std::string& path, const SnapshotFormat& format) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  File in(error ? nullptr : std::fopen(path.c_str(), "rb"));
  if (in == nullptr) fail(path, ": cannot be read");
  Checksum sum;
  const auto get = [&](void* data, size_t n_bytes) {
    if (n_bytes == 0) return;
    if (std::fread(data, 1, n_bytes, in.get()) != n_bytes) fail(path, ": is cut short");
    sum.add(data, n_bytes);
  };
  Header header;
  if (size < sizeof header + sizeof(uint64_t)) fail(path, ": is cut short");
  get(&header, sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) fail(path, ": is no snapshot");
  if (header.version != kVersion || header.header_bytes != sizeof header) {
    fail(path, ": has version ", header.version, "; this build reads ", kVersion);
  }
  if (header.fingerprint != format.fingerprint) {
    fail(path, ": was written for another model, or by another build or machine");
  }
  if (header.n_tokens < 1 || header.n_tokens > format.max_positions || header.position < 0 ||
      header.position > header.n_tokens) {
    fail(path, ": ", header.n_tokens, " tokens with a state at ", header.position, " do not fit ",
         format.max_positions, " positions");
  }
  const int64_t state_bytes = header.position == 0 ? 0 : format.state_bytes(header.position);
  const auto expected = sizeof header + static_cast<uint64_t>(header.n_tokens) * sizeof(int32_t) +
                        static_cast<uint64_t>(state_bytes) + sizeof(uint64_t);
  if (header.state_bytes != state_bytes || size != expected) {
    fail(path, ": has ", size, " bytes; its text and state take ", expected);
  }
  SnapshotFile out;
  out.position = header.position;
  out.tokens.resize(static_cast<size_t>(header.n_tokens));
  out.state.resize(static_cast<size_t>(state_bytes));
  get(out.tokens.data(), out.tokens.size() * sizeof(int32_t));
  get(out.state.data(), out.state.size());
  uint64_t checksum = 0;
  const uint64_t computed = sum.value();
  get(&checksum, sizeof checksum);
  if (checksum != computed) fail(path, ": its checksum is wrong; a byte has changed");
  return out;
}

}  // namespace replayssm
