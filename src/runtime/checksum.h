// XXH3, 64 bits, over parts as they come.
#pragma once

#include <xxhash.h>

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

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

// Sixteen digits.
inline std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

}  // namespace replayssm
