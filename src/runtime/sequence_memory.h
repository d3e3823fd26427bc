// Who holds which checkpoint slot, ring and KV page: the one owner of sequence memory, for served
// sequences (Scheduler) and for those of `generate`, `logits` and drafters (Runner).
//
// It sees no device. Work on memory comes out as actions; the caller does them in order before the
// next pass. A slot or page that several sequences or snapshots share is never written: its writer
// gets one of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "model/forward.h"
#include "model/state.h"
#include "runtime/prefix_cache.h"
#include "runtime/ref_pool.h"
#include "runtime/step_plan.h"

namespace replayssm {

struct SequenceMemoryOptions {
  Grid grid;
  PoolSizes pools;
  int64_t slot_bytes = 1;  // of a checkpoint slot and of a page: the cache's cost model
  int64_t page_bytes = 1;
  bool poison = false;          // a poison action for all that is freed
  bool tell_evictions = false;  // a kEvict action for each snapshot that is evicted
};

// What one sequence holds. Indices are -1 until they are allocated.
struct HeldMemory {
  SequenceState state{0, 0, -1, -1};
  std::vector<int32_t> pages;  // of positions [16 i, 16 i + 16)
};

class SequenceMemory {
 public:
  explicit SequenceMemory(const SequenceMemoryOptions& options);

  // An empty sequence with a ring. Fails if no ring is free.
  void open(HeldMemory& held);
  // Everything that the sequence holds; it is closed then.
  void free(HeldMemory& held);
  // A sequence that shares the checkpoint and pages and has a copy of the ring.
  HeldMemory fork(const HeldMemory& held);

  // Pages of [0, end), those of [n, end) the sequence's own: shared ones are copied on write. Where
  // none is free, snapshots are evicted, then preempt() is asked to free memory of others. False if
  // that does not suffice; the pages allocated so far are kept.
  bool ensure_pages(HeldMemory& held, int64_t end, const std::function<bool()>& preempt = {});
  // Fills in the row's read_slot and write_slot: a fold goes over the old checkpoint unless that is
  // shared. A slot that is not read or written may be any. False if no slot is to be had.
  bool place_fold(const HeldMemory& held, Phase phase, Row& row);
  // After a pass over `row`: moves n by n_commit tokens (all of a sweep's), and c if it folded.
  // conv_saved: the fold's conv rows are beside it, so that it may be published.
  void commit(HeldMemory& held, Phase phase, const Row& row, int64_t n_commit, bool conv_saved);

  // Conv rows before `position`, from a ring to beside a checkpoint slot.
  void save_conv(int32_t ring_slot, int32_t slot, int64_t position);
  // The state at the stored checkpoint goes to the cache, if it is more than the zero state and its
  // conv rows are saved. Pages that the cache knows already replace the sequence's.
  void publish(HeldMemory& held, std::span<const int32_t> tokens);
  // The same where the sequence has just reached the checkpoint (n == c): the conv rows are saved.
  void save_and_publish(HeldMemory& held, std::span<const int32_t> tokens);
  // Replaces what the sequence holds, but for its ring, by the longest snapshot of at most `limit`
  // tokens. There must be one.
  void adopt(HeldMemory& held, std::span<const int32_t> tokens, int64_t limit);
  // A shared checkpoint slot is copied. Fails if no slot is to be had.
  void own_checkpoint(HeldMemory& held);

  // For a snapshot that comes from elsewhere: memory for the state after `tokens`, to be filled
  // before the next pass. Nothing if it cannot be had.
  struct Place {
    int32_t slot = -1;
    std::vector<int32_t> pages;
  };
  std::optional<Place> import(std::span<const int32_t> tokens);

  // Drops the least valued snapshot; false if there is none.
  bool evict();
  void drop_cache();

  std::vector<Action> take_actions() { return std::exchange(actions_, {}); }

  PrefixCache& cache() { return cache_; }
  const PrefixCache& cache() const { return cache_; }
  const RefPool& slots() const { return slots_; }
  const RefPool& rings() const { return rings_; }
  const RefPool& pages() const { return pages_; }

 private:
  // What is known of a checkpoint slot: its state's position, and whether conv rows are beside it.
  struct Slot {
    int64_t position = 0;
    bool has_conv = false;
  };
  Slot& slot(int32_t i) { return slot_info_.at(static_cast<size_t>(i)); }
  std::optional<int32_t> allocate_slot();
  void release_state(HeldMemory& held);

  Grid grid_;
  bool tell_evictions_;
  RefPool slots_;
  RefPool rings_;
  RefPool pages_;
  std::vector<Action> actions_;
  PrefixCache cache_;
  std::vector<Slot> slot_info_;
};

}  // namespace replayssm
