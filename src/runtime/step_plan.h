// What crosses between the scheduler, which sees no device, and the executor, which decides
// nothing.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "model/forward.h"
#include "runtime/prefix_cache.h"

namespace replayssm {

// A choice of a request. Requests count up as they come.
struct SequenceKey {
  uint64_t request = 0;
  int32_t choice = 0;
  auto operator<=>(const SequenceKey&) const = default;
};

// Work on memory; all of it is done in order, before the pass.
struct Action {
  enum class Kind : int32_t {
    kCopyPage,          // page a -> page b
    kCopyRing,          // ring slot a -> ring slot b
    kCopyCheckpoint,    // checkpoint slot a -> checkpoint slot b
    kSaveConv,          // conv rows before `position`: ring slot a -> beside checkpoint slot b
    kLoadConv,          // conv rows before `position`: beside checkpoint slot a -> ring slot b
    kEvict,             // `gone` leaves the cache: the last moment to read it
    kPoisonCheckpoint,  // checkpoint slot a was freed
    kPoisonRing,
    kPoisonPage,
  };
  Kind kind;
  int32_t a = -1;
  int32_t b = -1;
  int64_t position = 0;
  PrefixCache::Evicted gone;
};

// One sequence's window.
struct StepRow {
  SequenceKey key;
  Phase phase = Phase::kStep;
  Row row;  // row.token is the executor's
  std::vector<int32_t> pages;
  // kStep: the last known token; up to this many drafts may be added to n_tokens.
  int32_t max_drafts = 0;
  bool all_logits = false;  // of every token; else of the last if it ends the text
  bool ends_text = false;   // the window reaches the last known token
  bool save_conv = false;   // a sweep that ends on the grid: afterwards conv rows -> write_slot
  bool only_folds = false;  // n_tokens == 0: a finished sequence's last checkpoint
};

struct StepPlan {
  std::vector<Action> actions;
  std::vector<StepRow> rows;
  bool empty() const { return actions.empty() && rows.empty(); }
};

// What became of a row.
struct RowResult {
  int32_t n_tokens = 0;  // fed, drafts included
  int32_t n_commit = 0;  // of them, those that are committed; all of a sweep's
  int32_t accepted = 0;  // of the drafts
  // Of each choice that the row stands for (one, but for a prompt with more): its new tokens, and
  // whether it has ended.
  struct Choice {
    std::vector<int32_t> tokens;
    bool ended = false;
  };
  std::vector<Choice> choices;
};

// A token that the device has drawn, or will, and the host does not know.
constexpr int32_t kUnknownToken = -1;

struct StepResult {
  std::vector<RowResult> rows;  // as StepPlan::rows
};

// What a pass cost, and what it gave.
struct PassCost {
  int64_t tokens = 0;  // fed, drafts included
  int64_t new_tokens = 0;
  int64_t drafted = 0;
  double seconds = 0;
  double draft_seconds = 0;
};

}  // namespace replayssm
