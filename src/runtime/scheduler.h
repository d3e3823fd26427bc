// Which sequences run in a step, over which tokens, in which memory. Pure logic on the host: no
// device, no model, no clock. plan() and commit() alternate; both are deterministic functions of
// what was added, removed and committed before.
//
//   decode first    every sequence with one token to feed gets a window in every step
//   prefill         in chunks that end at absolute positions (multiples of the chunk, cut points),
//                   round robin within the chunk's tokens a step
//   admission       in order of arrival, when a ring is free and the known tokens' pages can be had
//   preemption      the youngest frees its pages for an older sequence; what the cache keeps of it,
//                   it finds again. It goes on from its tokens, so with the same bits
//
// The oldest sequence always gets what it needs: the pools hold one of max_positions, and a
// checkpoint slot and a ring for each of max_sequences.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cut_points.h"
#include "runtime/draft_policy.h"
#include "runtime/sequence_memory.h"
#include "runtime/step_plan.h"

namespace replayssm {

struct SchedulerOptions {
  Grid grid;
  int32_t max_window = 1;
  int64_t max_positions = 4096;
  int32_t max_sequences = 1;   // rings
  PoolSizes pools;             // ring_slots == max_sequences
  int64_t chunk_tokens = 256;  // of prefill in a step; a multiple of the grid
  int64_t score_tokens = 64;   // likewise of windows with all logits; divides chunk_tokens
  bool prefix_cache = true;
  CutRule cuts;
  int64_t slot_bytes = 1;  // what a checkpoint slot and a page cost, for the cache's choice
  int64_t page_bytes = 1;
  bool poison = false;          // plan a poison action for all that is freed
  bool tell_evictions = false;  // plan a kEvict action for each snapshot that goes
};

// A request: one sequence, which becomes n_choices sequences at the end of its prompt.
struct SequenceSpec {
  std::vector<int32_t> tokens;
  int32_t n_choices = 1;
  int64_t max_length = 0;   // of a sequence; the engine ends it there
  bool all_logits = false;  // of the prompt: no position may come from the cache
  int32_t max_drafts = 0;
  bool adaptive = false;
};

struct Sequence : HeldMemory {
  enum class Stage : int32_t { kWaiting, kRunning, kClosing };
  Stage stage = Stage::kWaiting;
  SequenceSpec spec;  // tokens: of the prompt and the answer so far
  int64_t prompt_length = 0;
  DraftPolicy drafts{0, false};
  int64_t cached_tokens = 0;  // prompt positions taken from the cache
  std::string cache_note;
  bool admitted = false;  // once, at least
  int64_t preemptions = 0;

  int64_t length() const { return static_cast<int64_t>(spec.tokens.size()); }
  int64_t left() const { return length() - state.n; }
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  void add(uint64_t request, SequenceSpec spec);
  // Drops a sequence in any stage; all that it holds is free at once.
  void remove(const SequenceKey& key);
  // Frees a running sequence's memory; it waits for its turn again. False if it does not run.
  bool preempt(const SequenceKey& key);

  // The next step; empty if there is nothing to do.
  StepPlan plan();
  // What became of the last plan, row by row. A token that is not known yet is kUnknownToken: the
  // next plan goes on from it, and resolve() follows.
  void commit(const StepPlan& plan, const StepResult& result);
  // The unknown last token of a sequence: what it is, or that there is none after all, for the
  // sequence ends before it.
  void resolve(const SequenceKey& key, std::optional<int32_t> token);
  // The next plan takes nobody's memory away.
  bool has_slack() const;
  // The cost of a pass, for the choice of drafts.
  void observe(const PassCost& cost);

  bool idle() const { return sequences_.empty(); }
  const Sequence* find(const SequenceKey& key) const;
  const std::map<SequenceKey, Sequence>& sequences() const { return sequences_; }

  // Memory for a snapshot that comes from elsewhere; nothing without a prefix cache.
  std::optional<SequenceMemory::Place> import(std::span<const int32_t> tokens);
  // Forgets all snapshots.
  void drop_cache() { memory_.drop_cache(); }
  // Actions since the last plan: to be done before memory is read or written from outside.
  std::vector<Action> take_actions() { return memory_.take_actions(); }

  const SchedulerOptions& options() const { return options_; }
  const SequenceMemory& memory() const { return memory_; }
  int64_t n_preemptions() const { return n_preemptions_; }

 private:
  void admit_waiting();
  bool admit(Sequence& s);
  bool uses_cache(const Sequence& s) const;
  void adopt(Sequence& s);
  std::string note(const Sequence& s, const PrefixCache::Hit& hit) const;

  std::vector<SequenceKey> choose();
  std::optional<int64_t> cut(const Sequence& s, int64_t from, int64_t to) const;
  int64_t chunk_end(const Sequence& s) const;
  bool closing_leaves_more(const Sequence& s) const;
  bool place_fold(const Sequence& s, StepRow& row);
  bool reserve(const SequenceKey& key, Sequence& s, StepRow& row);
  bool preempt_youngest_after(const SequenceKey& key);

  void commit_row(const StepRow& row, const RowResult& result);
  void publish(Sequence& s);
  void fork(const SequenceKey& key, Sequence& s);
  void finish(const SequenceKey& key, Sequence& s);
  void release(Sequence& s);

  SchedulerOptions options_;
  SequenceMemory memory_;
  std::map<SequenceKey, Sequence> sequences_;
  int32_t rings_promised_ = 0;  // to the other choices of admitted prompts
  StepCost cost_;
  SequenceKey last_prefill_;  // who came last in the round
  int64_t n_preemptions_ = 0;
};

}  // namespace replayssm
