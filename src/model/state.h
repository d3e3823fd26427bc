// The memory of sequences. Slots and pages have no owner here: the runtime hands them out, and a
// slot or page index means the same place in every layer.
//
//   checkpoint slot  S of every recurrent layer at one grid point
//   ring slot        replay rings and conv rings of every recurrent layer
//   KV page          ops::kKvPage positions of every attention layer
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "model/model.h"

namespace replayssm {

struct PoolSizes {
  int32_t checkpoint_slots = 1;
  int32_t ring_slots = 1;
  int32_t kv_pages = 1;
  bool snapshots = false;  // conv rows stand beside each checkpoint slot
};

struct MemorySpan {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};
// In host memory.
void copy_spans(std::span<const MemorySpan> from, std::span<const MemorySpan> to);
void fill_with_nan(std::span<const MemorySpan> spans);

// Where the memory of sequences lies, part by part, on whatever device: lists of spans that belong
// to a slot. Lists of one kind have the same order and sizes whatever the slot.
struct StateParts {
  struct Slots {  // [slots, bytes]
    std::byte* data = nullptr;
    int64_t bytes = 0;  // of a slot; 0: the part does not exist
    int32_t count = 0;
    MemorySpan at(int32_t slot) const {
      REPLAYSSM_CHECK(slot >= 0 && slot < count, "slot ", slot, " of ", count);
      return {data + slot * bytes, bytes};
    }
  };
  struct Layer {
    Slots checkpoint, scale, ring_value, ring_key, ring_gate, conv;
    int64_t ring_rows = 0;  // of a ring slot
    int64_t conv_ring_rows = 0;
    int64_t conv_width = 0;

    MemorySpan ring_row(const Slots& ring, int32_t slot, int64_t position) const;
    MemorySpan conv_row(int32_t slot, int64_t position) const;
    // Of positions [position - w + 1, position), those below 0 left out.
    void add_conv_rows(int32_t slot, int64_t position, std::vector<MemorySpan>& to) const;
  };

  std::vector<Layer> layers;  // recurrent
  std::vector<Slots> kv;      // pages of each attention layer
  Slots conv_beside;          // of checkpoint slots; see PoolSizes::snapshots

  std::vector<MemorySpan> checkpoint(int32_t slot) const;
  std::vector<MemorySpan> ring(int32_t slot) const;
  std::vector<MemorySpan> page(int32_t page) const;
  // Raw inputs of positions [position - w + 1, position), those below 0 left out: in a ring slot,
  // and where they stand beside a checkpoint slot.
  std::vector<MemorySpan> conv_rows(int32_t ring_slot, int64_t position) const;
  std::vector<MemorySpan> conv_rows_beside(int32_t checkpoint_slot, int64_t position) const;
  // The state after a text whose checkpoint is in the slot: that, its conv rows, and pages.
  std::vector<MemorySpan> snapshot(int32_t slot, std::span<const int32_t> pages) const;
};

struct RecurrentPool {
  Buffer checkpoint;  // [checkpoint_slots, checkpoint_elements]
  Buffer scale;       // [checkpoint_slots, scale_elements], empty unless int8
  Buffer ring_value;  // [ring_slots, R, ring_value_row]
  Buffer ring_key;
  Buffer ring_gate;  // fp32
  Buffer conv;       // [ring_slots, conv ring rows, conv_row], activation dtype
};

class StatePool {
 public:
  StatePool(const Model& model, PoolSizes sizes);

  const PoolSizes& sizes() const { return sizes_; }
  // Counted as Model::recurrent() and Model::attention() count.
  RecurrentPool& recurrent(size_t i) { return recurrent_[i]; }
  const RecurrentPool& recurrent(size_t i) const { return recurrent_[i]; }
  ops::KvPool kv(size_t i);
  const StateParts& parts() const { return parts_; }

  int64_t bytes() const;

 private:
  PoolSizes sizes_;
  std::vector<RecurrentPool> recurrent_;
  std::vector<Buffer> kv_;
  Buffer conv_beside_;
  StateParts parts_;
};

}  // namespace replayssm
