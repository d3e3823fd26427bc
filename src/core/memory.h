// Large buffers: 2 MiB aligned, transparent huge pages advised. On machines whose THP policy is
// "madvise" this is worth about 30 % of the read bandwidth of weights and state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace replayssm {

// Throws Error if `bytes`, taken for `what`, are more than this machine's memory.
void check_memory(double bytes, const std::string& what);

// Owns zeroed memory. Small sizes are aligned to 64 bytes, large ones (>= 1 MiB) to 2 MiB.
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

}  // namespace replayssm
