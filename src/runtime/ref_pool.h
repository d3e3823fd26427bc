// Indices [0, size) handed out with reference counts: slots and pages that several owners share.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/error.h"

namespace replayssm {

class RefPool {
 public:
  explicit RefPool(int32_t size) : refs_(static_cast<size_t>(size), 0) {
    for (int32_t i = size; i-- > 0;) free_.push_back(i);
  }

  int32_t size() const { return static_cast<int32_t>(refs_.size()); }
  int32_t n_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t refs(int32_t i) const { return refs_.at(static_cast<size_t>(i)); }

  // One reference to an index that nobody holds.
  std::optional<int32_t> take() {
    if (free_.empty()) return std::nullopt;
    const int32_t i = free_.back();
    free_.pop_back();
    refs_[static_cast<size_t>(i)] = 1;
    return i;
  }
  void retain(int32_t i) {
    REPLAYSSM_CHECK(refs(i) > 0, "index ", i, " is free");
    ++refs_[static_cast<size_t>(i)];
  }
  void release(int32_t i) {
    REPLAYSSM_CHECK(refs(i) > 0, "index ", i, " is free");
    if (--refs_[static_cast<size_t>(i)] > 0) return;
    free_.push_back(i);
    if (on_free_) on_free_(i);
  }

  // Told of each index whose last reference went.
  void on_free(std::function<void(int32_t)> hook) { on_free_ = std::move(hook); }

 private:
  std::vector<int32_t> refs_;
  std::vector<int32_t> free_;
  std::function<void(int32_t)> on_free_;
};

}  // namespace replayssm
