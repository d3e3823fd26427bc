// Large memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace replayssm {

// Throws Error if `bytes`, taken for `what`, are more than this machine's memory.
void check_memory(double bytes, const std::string& what);

// Owns zeroed memory. Small sizes are aligned to 64 bytes, large ones (>= 1 MiB) to 2 MiB, with
// transparent huge pages advised: where the policy is "madvise" they are worth about 30 % of the
// read bandwidth of weights and state.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() { return data_; }
  const void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Zeroed pages from the system, which it has back when they are freed. Throws Error.
void* map_pages(size_t bytes);
void unmap_pages(void* pages, size_t bytes) noexcept;

// For containers whose blocks come and go in any order: on the heap large ones leave holes, which
// stay resident and which no count of the blocks' bytes shows.
template <typename T>
struct PageAllocator {
  using value_type = T;
  PageAllocator() = default;
  template <typename U>
  PageAllocator(const PageAllocator<U>& /*other*/) {}
  T* allocate(size_t n) { return static_cast<T*>(map_pages(n * sizeof(T))); }
  void deallocate(T* pages, size_t n) noexcept { unmap_pages(pages, n * sizeof(T)); }
  bool operator==(const PageAllocator&) const = default;
};

}  // namespace replayssm
