// Memory given out by purpose. The same walk that takes the memory tells how much there must be: an
// arena that counts gives null and keeps the sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/memory.h"

namespace replayssm {

// Bytes by purpose, in the order of the first use.
using MemoryUse = std::vector<std::pair<std::string, int64_t>>;

class Arena {
 public:
  virtual ~Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Null for no bytes, and from an arena that counts.
  void* take(const char* purpose, int64_t bytes);
  template <typename T>
  T* take_as(const char* purpose, int64_t count) {
    return static_cast<T*>(take(purpose, count * static_cast<int64_t>(sizeof(T))));
  }

  bool counts_only() const { return counts_only_; }
  int64_t used() const { return used_; }
  const MemoryUse& use() const { return use_; }

 protected:
  // Sizes are rounded up to multiples of the alignment.
  Arena(int64_t alignment, bool counts_only) : alignment_(alignment), counts_only_(counts_only) {}
  // Memory of `bytes`, `at` bytes after what was taken first.
  virtual void* place(int64_t at, int64_t bytes) = 0;

 private:
  int64_t alignment_;
  bool counts_only_;
  int64_t used_ = 0;
  MemoryUse use_;
};

class CountingArena final : public Arena {
 public:
  explicit CountingArena(int64_t alignment) : Arena(alignment, /*counts_only=*/true) {}

 private:
  void* place(int64_t, int64_t) override { return nullptr; }
};

// Each piece is a Buffer of its own: zeroed, aligned as Buffer says.
class HostArena final : public Arena {
 public:
  static constexpr int64_t kAlignment = 1;
  HostArena() : Arena(kAlignment, /*counts_only=*/false) {}

 private:
  void* place(int64_t, int64_t bytes) override;
  std::vector<Buffer> pieces_;
};

}  // namespace replayssm
