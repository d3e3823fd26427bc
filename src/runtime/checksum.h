// XXH3, 64 bits, over parts as they come.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/error.h"

namespace replayssm {

class Checksum {
 public:
  Checksum() : state_(XXH3_createState()) {
    if (state_ == nullptr) fail("out of memory");
    XXH3_64bits_reset(state_.get());
  }
  void add(const void* data, size_t n_bytes) { XXH3_64bits_update(state_.get(), data, n_bytes); }
  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace replayssm
