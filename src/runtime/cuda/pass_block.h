// The arrays of a pass in one block of memory, carved alike on the host and on the device, so that
// they go down in one copy and come up in one.
#pragma once

#include <compare>
#include <cstdint>
#include <cstring>

#include "core/cuda/device.h"
#include "core/memory.h"
#include "model/cuda/ops_cuda.h"
#include "ops/sample.h"

namespace replayssm {

// All that the launches of a pass depend on.
struct PassShape {
  int32_t n_step = 0, n_sweep = 0;  // rows
  int64_t n_tokens = 1;             // packed
  int64_t n_logits = 0;
  int32_t longest = 1;  // no window has more tokens
  bool single = false;  // no step's window has more than one token, or follows pending ones
  int64_t n_pages = 1;  // no window ends beyond them

  int32_t n_rows() const { return n_step + n_sweep; }
  auto operator<=>(const PassShape&) const = default;
};

// Places of arrays in one block, 16-byte aligned; a null block counts.
class Carver {
 public:
  explicit Carver(char* block) : block_(block) {}
  template <typename T>
  T* take(int64_t count) {
    char* at = block_ == nullptr ? nullptr : block_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;
    return reinterpret_cast<T*>(at);
  }
  int64_t used() const { return used_; }

 private:
  char* block_;
  int64_t used_ = 0;
};

// What goes down: pages last, for most of a long table is not written.
struct PassArrays {
  Row* rows;
  int64_t* start;                   // [rows]
  int64_t* first_token;             // [rows]
  int32_t* row_tokens;              // [rows] 0: no window
  int32_t* row_logits;              // [rows] rows of logits
  int64_t* first_logit;             // [rows]
  int32_t* tokens;                  // [tokens]
  int64_t* positions;               // [tokens]
  int64_t* logit_tokens;            // [logits]
  ops::SamplerParams* draw_params;  // [logits]
  int64_t* draw_positions;          // [logits]
  int32_t* pages;                   // [rows, n_pages]

  PassArrays(Carver& carver, const PassShape& shape);
  // Row i: the window of `row`, at consecutive positions.
  void set_row(int64_t i, const Row& row) const;
};

// What comes up, beside logits. The rows' tokens come first: the next pass finds them there.
struct OutcomeArrays {
  int32_t* next;        // [rows] the token after the last accepted draft
  int32_t* n_accepted;  // [rows]
  int32_t* tokens;      // [logits] drawn
  ops::SampleStatus* status;

  OutcomeArrays(Carver& carver, const PassShape& shape);
};

template <typename Arrays>
int64_t bytes_of(const PassShape& shape) {
  Carver carver(nullptr);
  const Arrays arrays(carver, shape);
  return carver.used();
}

// The pass over such arrays on the device.
PassCuda pass_of(const PassShape& shape, const PassArrays& device);

// A block in host memory with a page-locked one beside it, which is read and written at once:
// page-locked memory is slow to write piece by piece on some hosts.
class Staged {
 public:
  Staged() = default;
  explicit Staged(int64_t bytes) : host_(static_cast<size_t>(bytes)), pinned_(bytes) {}
  char* host() { return host_.as<char>(); }
  char* pinned() const { return pinned_.data(); }
  void send(int64_t bytes) {
    std::memcpy(pinned_.data(), host_.data(), static_cast<size_t>(bytes));
  }
  void receive(int64_t bytes) {
    std::memcpy(host_.data(), pinned_.data(), static_cast<size_t>(bytes));
  }

 private:
  Buffer host_;
  PinnedBuffer pinned_;
};

}  // namespace replayssm
