// The bytes that all requests of a server may hold at once: bodies that came, answers that wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace replayssm::server {

class RequestMemory {
 public:
  explicit RequestMemory(int64_t limit) : limit_(limit) {}
  int64_t limit() const { return limit_; }
  int64_t used() const { return used_; }

 private:
  friend class MemoryShare;
  const int64_t limit_;
  std::atomic<int64_t> used_{0};
};

// What one request holds of it; gives it back at its end.
class MemoryShare {
 public:
  // Null: without a limit.
  explicit MemoryShare(std::shared_ptr<RequestMemory> memory) : memory_(std::move(memory)) {}
  ~MemoryShare() { set(0); }
  MemoryShare(const MemoryShare&) = delete;
  MemoryShare& operator=(const MemoryShare&) = delete;

  // False, and nothing changes, if the limit does not allow it. Up to kFreeBytes always pass, so
  // that small requests are served beside large ones.
  bool set(int64_t bytes) {
    constexpr int64_t kFreeBytes = int64_t{64} << 10;
    if (memory_ == nullptr) return true;
    const int64_t more = bytes - bytes_;
    const int64_t used = memory_->used_.fetch_add(more) + more;
    if (more > 0 && used > memory_->limit_ && bytes > kFreeBytes) {
      memory_->used_ -= more;
      return false;
    }
    bytes_ = bytes;
    return true;
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<RequestMemory> memory_;
  int64_t bytes_ = 0;
};

}  // namespace replayssm::server
