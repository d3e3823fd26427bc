// The memory of sequences. Slots and pages have no owner here: the runtime hands them out, and a
// slot or page index means the same place in every layer.
//
//   checkpoint slot  S of every recurrent layer at one grid point
//   ring slot        replay rings and conv rings of every recurrent layer
//   KV page          ops::kKvPage positions of every attention layer
#pragma once

#include <cstdint>
#include <vector>

#include "core/memory.h"
#include "model/model.h"

namespace replayssm {

struct PoolSizes {
  int32_t checkpoint_slots = 1;
  int32_t ring_slots = 1;
  int32_t kv_pages = 1;
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

  // A fork's copies: all ring rows and conv rows; one page. Checkpoints need no copy.
  void copy_ring(int32_t from, int32_t to);
  void copy_page(int32_t from, int32_t to);

  // Fill with NaN, so that a read of what nobody wrote shows.
  void poison_checkpoint(int32_t slot);
  void poison_ring(int32_t slot);
  void poison_page(int32_t page);

  int64_t bytes() const;

 private:
  PoolSizes sizes_;
  std::vector<RecurrentPool> recurrent_;
  std::vector<Buffer> kv_;
};

}  // namespace replayssm
