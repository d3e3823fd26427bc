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

#include "core/arena.h"
#include "core/error.h"
#include "ops/attention.h"
#include "replay/conv.h"
#include "replay/step.h"

namespace replayssm {

struct PoolSizes {
  int32_t checkpoint_slots = 1;
  int32_t ring_slots = 1;
  int32_t kv_pages = 1;
  bool snapshots = false;  // conv rows are kept beside each checkpoint slot
};

// What a layer's state takes, in elements; a backend's plans say so.
struct RecurrentSizes {
  Problem problem;
  ConvProblem conv;
  int64_t checkpoint_elements = 0;  // of a slot, checkpoint dtype
  int64_t scale_elements = 0;       // of a slot, fp32
  int64_t value_row = 0;            // of a ring row, ring dtype
  int64_t key_row = 0;
  int64_t gate_row = 0;  // fp32

  int64_t checkpoint_bytes() const { return checkpoint_elements * dtype_bytes(problem.checkpoint); }
  int64_t scale_bytes() const { return scale_elements * int64_t{sizeof(float)}; }
  int64_t value_bytes() const { return value_row * dtype_bytes(problem.ring); }
  int64_t key_bytes() const { return key_row * dtype_bytes(problem.ring); }
  int64_t gate_bytes() const { return gate_row * int64_t{sizeof(float)}; }
  int64_t conv_row_bytes() const { return conv.n_channels * dtype_bytes(conv.activation); }
};

struct KvSizes {
  int64_t page_bytes = 0;
  int64_t token_bytes = 0;
};

// Beside a drafting head: the model's last hidden states, one row a position. They are kept as the
// inputs of a conv of width 2 are, so that h_{n-1} goes wherever conv rows go.
struct HiddenSizes {
  static constexpr int32_t kWidth = 2;
  int64_t row_bytes = 0;  // 0: none
  int64_t ring_rows = 0;
};

struct StateSizes {
  std::vector<RecurrentSizes> recurrent;
  std::vector<KvSizes> kv;
  HiddenSizes hidden;
};

// What a model costs, by purpose.
struct ModelMemory {
  int64_t weights = 0;
  int64_t checkpoint_slot = 0;  // all recurrent layers: one checkpoint of one sequence
  int64_t ring_slot = 0;        // one sequence's replay rings
  int64_t ring_token = 0;       // of these, one token's row
  int64_t conv_slot = 0;        // one sequence's conv rings
  int64_t conv_rows = 0;        // of these, the rows before the next token
  int64_t kv_page = 0;          // all attention layers: ops::kKvPage positions
  int64_t kv_token = 0;
};

// Without weights.
ModelMemory memory_of(const StateSizes& sizes);

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

  std::vector<Layer> layers;  // recurrent; beside a drafting head, last, that of hidden states
  std::vector<Slots> kv;      // pages of each attention layer
  Slots conv_beside;          // of checkpoint slots; see PoolSizes::snapshots

  // The hidden state at a position, of the last few.
  MemorySpan hidden(int32_t ring_slot, int64_t position) const {
    return layers.back().conv_row(ring_slot, position);
  }
  std::vector<MemorySpan> checkpoint(int32_t slot) const;
  std::vector<MemorySpan> ring(int32_t slot) const;
  std::vector<MemorySpan> page(int32_t page) const;
  // Raw inputs of positions [position - w + 1, position), those below 0 left out: in a ring slot,
  // and beside a checkpoint slot.
  std::vector<MemorySpan> conv_rows(int32_t ring_slot, int64_t position) const;
  std::vector<MemorySpan> conv_rows_beside(int32_t checkpoint_slot, int64_t position) const;
  // The state after a prefix whose checkpoint is in the slot: that, its conv rows, and pages.
  std::vector<MemorySpan> snapshot(int32_t slot, std::span<const int32_t> pages) const;
};

struct RecurrentPool {
  void* checkpoint = nullptr;  // [checkpoint_slots, checkpoint_elements]
  float* scale = nullptr;      // [checkpoint_slots, scale_elements], null unless int8
  void* ring_value = nullptr;  // [ring_slots, R, value_row]
  void* ring_key = nullptr;
  float* ring_gate = nullptr;
  void* conv = nullptr;  // [ring_slots, conv ring rows, channels], activation dtype
};

// The memory is the arena's.
struct StatePool {
  PoolSizes sizes;
  std::vector<RecurrentPool> recurrent;
  std::vector<ops::KvPool> kv;
  StateParts parts;
};

StatePool take_pool(const StateSizes& sizes, const PoolSizes& slots, Arena& arena);

// Fills in the checkpoints and rings of a layer.
void place_state(const RecurrentSizes& layer, const RecurrentPool& pool, StepArgs& args);
Ring conv_ring(const RecurrentSizes& layer, const RecurrentPool& pool);

}  // namespace replayssm
