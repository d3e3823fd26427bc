#include "runtime/runner.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/memory.h"
#include "runtime/mtp_drafts.h"

namespace replayssm {
namespace {

PoolSizes pool_sizes(const ModelMemory& memory, const RunnerLimits& limits) {
  const double each =
      static_cast<double>(memory.checkpoint_slot + memory.ring_slot + memory.conv_slot) +
      static_cast<double>(memory.kv_page) *
          static_cast<double>(ops::pages_for(limits.max_positions));
  const double kept =
      static_cast<double>(memory.checkpoint_slot + memory.conv_rows) * limits.snapshots +
      static_cast<double>(memory.kv_page) * limits.snapshot_pages;
  check_memory(each * limits.max_sequences + kept,
               concat(limits.max_sequences, " sequences of ", limits.max_positions, " tokens"));
  PoolSizes sizes;
  sizes.checkpoint_slots = limits.max_sequences + limits.snapshots;
  sizes.ring_slots = limits.max_sequences;
  sizes.snapshots = limits.snapshots > 0;
  const int64_t pages =
      limits.max_sequences * ops::pages_for(limits.max_positions) + limits.snapshot_pages;
  if (pages > INT32_MAX) fail("a KV cache of ", pages, " pages; at most ", INT32_MAX);
  sizes.kv_pages = static_cast<int32_t>(pages);
  return sizes;
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
      backend_(device.make(*model_, pool_sizes(memory_, limits), limits.forward())),
      slots_(limits.max_sequences + limits.snapshots),
      pages_(static_cast<int32_t>(limits.max_sequences * ops::pages_for(limits.max_positions)) +
             limits.snapshot_pages),
      cache_(slots_, pages_, memory_.checkpoint_slot + memory_.conv_rows, memory_.kv_page),
      sequences_(static_cast<size_t>(limits.max_sequences)) {
  for (Sequence& s : sequences_) {
    s.pages.reserve(static_cast<size_t>(ops::pages_for(limits.max_positions)));
  }
  rows_.reserve(static_cast<size_t>(limits.max_sequences));
  tokens_.reserve(static_cast<size_t>(limits.max_tokens));
  logit_tokens_.reserve(static_cast<size_t>(limits.max_logits));
}

int32_t Runner::open() {
  for (int32_t i = 0; i < limits_.max_sequences; ++i) {
    Sequence& s = sequences_[i];
    if (s.open) continue;
    s.open = true;
    s.state = {0, 0, -1, i};
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
  release(sequences_[sequence]);
  sequences_[sequence].open = false;
}

void Runner::release(Sequence& s) {
  for (const int32_t page : s.pages) pages_.release(page);
  s.pages.clear();
  if (s.state.checkpoint_slot >= 0) slots_.release(s.state.checkpoint_slot);
}

Row Runner::row_of(const Window& window, int64_t token) const {
  const SequenceState& s = sequences_[window.sequence].state;
  Row row;
  row.n = s.n;
  row.c = s.c;
  row.start = s.n + window.pending;
  row.n_tokens = static_cast<int32_t>(window.tokens.size());
  row.token = token;
  row.ring_slot = s.ring_slot;
  return row;
}

// Pages of [0, end), those of [n, end) the sequence's own. There are as many as all sequences need
// at their longest; what lacks is with snapshots.
void Runner::take_pages(Sequence& s, int64_t end) {
  for (int64_t i = s.state.n / ops::kKvPage; i < ops::pages_for(end); ++i) {
    const auto at = static_cast<size_t>(i);
    const auto owned = [&] { return at < s.pages.size() && pages_.refs(s.pages[at]) == 1; };
    while (!owned() && pages_.n_free() == 0 && cache_.evict(nullptr)) continue;
    if (owned()) continue;
    const int32_t page = pages_.take().value();
    if (at == s.pages.size()) {
      s.pages.push_back(page);
      continue;
    }
    const int32_t old = std::exchange(s.pages[at], page);
    if (i * ops::kKvPage < s.state.n) {
      backend_->copy(backend_->parts().page(old), backend_->parts().page(page));
    }
    pages_.release(old);
  }
}

// Where the window's checkpoint is read, and where a fold goes: over the old one if no snapshot
// shares it. A slot that is not read or written may be any.
void Runner::place_fold(const Sequence& s, bool prefill, Row& row) {
  const int32_t slot = s.state.checkpoint_slot;
  row.read_slot = row.write_slot = std::max(slot, 0);
  const Grid& grid = model_->grid();
  if (grid.checkpoint_of(prefill ? row.start + row.n_tokens : row.n) == row.c) return;
  const auto owned = [&] { return slot >= 0 && slots_.refs(slot) == 1; };
  while (!owned() && slots_.n_free() == 0 && cache_.evict(nullptr)) continue;
  if (owned()) return;
  row.write_slot = slots_.take().value();
  if (slot < 0) row.read_slot = row.write_slot;
}

// A prefill is committed; of a step, its fold is.
void Runner::commit(const Window& window, const Row& row) {
  SequenceState& state = sequences_[window.sequence].state;
  const int32_t old = state.checkpoint_slot;
  check_committed(window.prefill ? commit_sweep(model_->grid(), row, state)
                                 : commit_step(model_->grid(), row, 0, state));
  if (old >= 0 && state.checkpoint_slot != old) slots_.release(old);
}

void Runner::keep(int32_t sequence, std::span<const int32_t> tokens) {
  opened(sequence);
  Sequence& s = sequences_[sequence];
  const SequenceState& at = s.state;
  REPLAYSSM_CHECK(at.n == at.c && at.n > 0 && at.n <= std::ssize(tokens) && s.n_pending == 0,
                  "a snapshot at ", at.n, " of ", tokens.size(), " tokens, checkpoint at ", at.c);
  if (limits_.snapshots == 0) return;
  const StateParts& parts = backend_->parts();
  backend_->copy(parts.conv_rows(at.ring_slot, at.n),
                 parts.conv_rows_beside(at.checkpoint_slot, at.n));
  cache_.insert(tokens.first(static_cast<size_t>(at.n)), at.checkpoint_slot, s.pages);
}

void Runner::resume(int32_t sequence, std::span<const int32_t> tokens, int64_t limit) {
  opened(sequence);
  Sequence& s = sequences_[sequence];
  REPLAYSSM_CHECK(s.n_pending == 0, s.n_pending, " tokens are pending");
  if (cache_.peek(tokens, limit).position <= s.state.n) return;
  const PrefixCache::Hit hit = cache_.find(tokens, limit);
  slots_.retain(hit.slot);
  for (const int32_t page : hit.pages) pages_.retain(page);
  release(s);
  s.pages.assign(hit.pages.begin(), hit.pages.end());
  // A copy: were the slot shared by sequences, a pass could need a slot more than there are.
  while (slots_.n_free() == 0 && cache_.evict(nullptr)) continue;
  const int32_t slot = slots_.take().value();
  const StateParts& parts = backend_->parts();
  backend_->copy(parts.checkpoint(hit.slot), parts.checkpoint(slot));
  backend_->copy(parts.conv_rows_beside(hit.slot, hit.position),
                 parts.conv_rows(s.state.ring_slot, hit.position));
  slots_.release(hit.slot);
  s.state.n = s.state.c = hit.position;
  s.state.checkpoint_slot = slot;
}

void Runner::forget() {
  while (cache_.evict(nullptr)) continue;
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
    take_pages(s, row.row.start + row.row.n_tokens);
    row.pages = s.pages.data();
    place_fold(s, window.prefill, row.row);
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
    commit(windows[i], rows_[i].row);
  }
  ++n_passes_;
  return logits;
}

std::vector<int32_t> Runner::draft(int32_t sequence, int32_t last, int32_t k, ops::Sampler& sampler,
                                   const ops::SamplerParams& sampling) {
  opened(sequence);
  Sequence& s = sequences_[sequence];
  REPLAYSSM_CHECK(s.n_pending == 0 && s.state.n + k <= limits_.max_positions, k, " drafts at ",
                  s.state.n, " with ", s.n_pending, " pending");
  take_pages(s, s.state.n + k);
  MtpJob job{{last, s.state.n, s.pages.data(), s.state.ring_slot}, k, sampling};
  draft_by_mtp(*backend_, sampler, model_->spec().vocab, {&job, 1});
  return std::move(job.drafts);
}

void Runner::advance(int32_t sequence, int64_t count) {
  opened(sequence);
  Sequence& s = sequences_[sequence];
  REPLAYSSM_CHECK(count >= 0 && count <= s.n_pending, "advance of ", count, " with ", s.n_pending,
                  " fed");
  s.state.n += count;
  s.n_pending = 0;
}

}  // namespace replayssm
