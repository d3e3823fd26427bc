#include "runtime/runner.h"

#include <algorithm>

#include "core/error.h"
#include "core/memory.h"

namespace replayssm {
namespace {

int64_t pages_for(int64_t positions) { return (positions + ops::kKvPage - 1) / ops::kKvPage; }

PoolSizes pool_sizes(const ModelMemory& memory, const RunnerLimits& limits, int32_t slots_each) {
  const double each =
      static_cast<double>(memory.checkpoint_slot) * slots_each +
      static_cast<double>(memory.ring_slot + memory.conv_slot) +
      static_cast<double>(memory.kv_page) * static_cast<double>(pages_for(limits.max_positions));
  check_memory(each * limits.max_sequences,
               concat(limits.max_sequences, " sequences of ", limits.max_positions, " tokens"));
  PoolSizes sizes;
  sizes.checkpoint_slots = limits.max_sequences * slots_each;
  sizes.ring_slots = limits.max_sequences;
  const int64_t pages = limits.max_sequences * pages_for(limits.max_positions);
  if (pages > INT32_MAX) fail("a KV cache of ", pages, " pages; at most ", INT32_MAX);
  sizes.kv_pages = static_cast<int32_t>(pages);
  return sizes;
}

// kPlain keeps a snapshot a token of a window, beside the state that the window starts from.
int32_t checkpoint_slots_each(const ModelOptions& options) {
  return options.state == StateMode::kPlain ? options.max_window + 1 : 1;
}

void check_committed(Status status) {
  REPLAYSSM_CHECK(status == Status::kOk, "a row that the runner made does not commit");
}

}  // namespace

void check_text(const std::string& source, std::span<const int32_t> ids, int64_t vocab,
                int64_t max_positions) {
  if (ids.empty()) fail(source, " is empty; it needs at least one token");
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab) fail(source, ": id ", id, " is not in [0, ", vocab, ")");
  }
  if (static_cast<int64_t>(ids.size()) > max_positions) {
    fail(source, " has ", ids.size(), " tokens; the context holds ", max_positions);
  }
}

Runner::Runner(std::shared_ptr<const Model> model, const Device& device, RunnerLimits limits)
    : model_(std::move(model)),
      memory_(device.memory(*model_)),
      limits_(limits),
      backend_(device.make(*model_,
                           pool_sizes(memory_, limits, checkpoint_slots_each(model_->options())),
                           limits.forward())),
      sequences_(static_cast<size_t>(limits.max_sequences)) {
  const int32_t pages_each = static_cast<int32_t>(pages_for(limits.max_positions));
  for (int32_t i = 0; i < limits.max_sequences; ++i) {
    for (int32_t page = 0; page < pages_each; ++page) {
      sequences_[i].pages.push_back(i * pages_each + page);
    }
    sequences_[i].snapshots.reserve(static_cast<size_t>(limits.max_tokens));
  }
  rows_.reserve(static_cast<size_t>(limits.max_sequences));
  tokens_.reserve(static_cast<size_t>(limits.max_tokens));
  logit_tokens_.reserve(static_cast<size_t>(limits.max_logits));
}

int32_t Runner::slots_each() const { return checkpoint_slots_each(model_->options()); }

int32_t Runner::open() {
  for (int32_t i = 0; i < limits_.max_sequences; ++i) {
    Sequence& s = sequences_[i];
    if (s.open) continue;
    s.open = true;
    s.state = {0, 0, i * slots_each(), i};
    s.n_pending = 0;
    return i;
  }
  fail("all ", limits_.max_sequences, " sequences are in use");
}

const Runner::Sequence& Runner::opened(int32_t sequence) const {
  REPLAYSSM_CHECK(sequence >= 0 && sequence < limits_.max_sequences && sequences_[sequence].open,
                  "sequence ", sequence, " of ", limits_.max_sequences, " is not open");
  return sequences_[sequence];
}

void Runner::close(int32_t sequence) {
  opened(sequence);
  sequences_[sequence].open = false;
}

Row Runner::row_of(const Window& window, int64_t token) const {
  const SequenceState& s = sequences_[window.sequence].state;
  Row row;
  row.n = s.n;
  row.c = plain() ? 0 : s.c;
  row.start = s.n + window.pending;
  row.n_tokens = static_cast<int32_t>(window.tokens.size());
  row.token = token;
  row.read_slot = s.checkpoint_slot;
  row.write_slot = s.checkpoint_slot;
  row.ring_slot = s.ring_slot;
  return row;
}

// kPlain: a prefill writes the last token's state over the sequence's own; a window takes the other
// slots in turn, one a token, for any of them may be the accepted one.
void Runner::place_states(const Window& window, Sequence& s) {
  s.snapshots.assign(window.tokens.size(), -1);
  if (window.prefill) {
    s.snapshots.back() = s.state.checkpoint_slot;
    return;
  }
  const int32_t first = s.state.ring_slot * slots_each();
  for (size_t i = 0; i < s.snapshots.size(); ++i) {
    const int32_t at = s.state.checkpoint_slot - first + 1 + static_cast<int32_t>(i);
    s.snapshots[i] = first + at % slots_each();
  }
  // One token has no snapshot to keep: its state goes back where it came from.
  if (s.snapshots.size() == 1) s.snapshots[0] = s.state.checkpoint_slot;
}

void Runner::check_window(const Window& window) const {
  const Sequence& s = opened(window.sequence);
  const int64_t size = static_cast<int64_t>(window.tokens.size());
  REPLAYSSM_CHECK(window.pending >= 0 && window.pending <= s.n_pending, window.pending,
                  " pending of ", s.n_pending, " fed");
  REPLAYSSM_CHECK(window.pending == 0 || !window.prefill, "a prefill after ", window.pending,
                  " pending");
  REPLAYSSM_CHECK(window.n_logits >= 0 && window.n_logits <= size, window.n_logits, " logits of ",
                  size, " tokens");
  if (plain()) {
    REPLAYSSM_CHECK(window.pending == 0, "pending tokens need replay");
    REPLAYSSM_CHECK(s.n_pending != 1, "a plain token cannot be undone");
    REPLAYSSM_CHECK(size > 0, "a plain window has tokens");
  }
  const int64_t end = s.state.n + window.pending + size;
  if (end > limits_.max_positions) {
    fail(end, " tokens do not fit the context of ", limits_.max_positions);
  }
}

const float* Runner::run(std::span<const Window> windows) {
  for (const Window& window : windows) check_window(window);
  rows_.clear();
  tokens_.clear();
  logit_tokens_.clear();
  for (const Window& window : windows) {
    Sequence& s = sequences_[window.sequence];
    REPLAYSSM_CHECK(s.last_pass != n_passes_, "two windows of sequence ", window.sequence);
    s.last_pass = n_passes_;
    ForwardRow row;
    row.row = row_of(window, static_cast<int64_t>(tokens_.size()));
    row.phase = window.prefill ? Phase::kSweep : Phase::kStep;
    row.pages = s.pages.data();
    if (plain()) {
      place_states(window, s);
      row.state_slots = s.snapshots.data();
    }
    rows_.push_back(row);
    s.n_pending = window.prefill ? 0 : window.pending + row.row.n_tokens;
    tokens_.insert(tokens_.end(), window.tokens.begin(), window.tokens.end());
    for (int32_t i = window.n_logits; i > 0; --i) {
      logit_tokens_.push_back(static_cast<int64_t>(tokens_.size()) - i);
    }
  }
  const float* logits = backend_->run({rows_, tokens_, logit_tokens_}, {}).logits;
  for (size_t i = 0; i < windows.size(); ++i) {
    traffic_.add(memory_, *model_, rows_[i].row, windows[i].prefill);
    SequenceState& state = sequences_[windows[i].sequence].state;
    if (plain()) {
      if (windows[i].prefill) state.n += rows_[i].row.n_tokens;
    } else if (windows[i].prefill) {
      check_committed(commit_sweep(model_->grid(), rows_[i].row, state));
    } else {
      // The fold stands whatever is accepted.
      check_committed(commit_step(model_->grid(), rows_[i].row, 0, state));
    }
  }
  ++n_passes_;
  return logits;
}

void Runner::advance(int32_t sequence, int64_t count) {
  opened(sequence);
  Sequence& s = sequences_[sequence];
  REPLAYSSM_CHECK(count >= 0 && count <= s.n_pending, "advance of ", count, " with ", s.n_pending,
                  " fed");
  REPLAYSSM_CHECK(!plain() || count > 0 || s.n_pending != 1, "a plain token cannot be undone");
  if (plain() && count > 0) {
    s.state.checkpoint_slot = s.snapshots[static_cast<size_t>(count - 1)];
  }
  s.state.n += count;
  s.n_pending = 0;
}

}  // namespace replayssm
