#include "runtime/runner.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/memory.h"
#include "runtime/executor.h"
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
      memory_sizes_(device.memory(*model_)),
      limits_(limits),
      backend_(device.make(*model_, pool_sizes(memory_sizes_, limits), limits.forward())),
      memory_({.grid = model_->grid(),
               .pools = pool_sizes(memory_sizes_, limits),
               .slot_bytes = memory_sizes_.checkpoint_slot + memory_sizes_.conv_rows,
               .page_bytes = memory_sizes_.kv_page}),
      sequences_(static_cast<size_t>(limits.max_sequences)),
      windows_(limits.forward()) {
  for (Sequence& s : sequences_) {
    s.pages.reserve(static_cast<size_t>(ops::pages_for(limits.max_positions)));
  }
}

int32_t Runner::open() {
  for (int32_t i = 0; i < limits_.max_sequences; ++i) {
    Sequence& s = sequences_[i];
    if (s.open) continue;
    s.open = true;
    memory_.open(s);
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

Runner::Sequence& Runner::opened(int32_t sequence) {
  std::as_const(*this).opened(sequence);
  return sequences_[sequence];
}

void Runner::close(int32_t sequence) {
  Sequence& s = opened(sequence);
  memory_.free(s);
  s.open = false;
}

void Runner::act() {
  for (const Action& action : memory_.take_actions()) replayssm::act(*backend_, action);
}

void Runner::keep(int32_t sequence, std::span<const int32_t> tokens) {
  Sequence& s = opened(sequence);
  REPLAYSSM_CHECK(s.n_pending == 0, s.n_pending, " tokens are pending");
  if (limits_.snapshots == 0) return;
  memory_.save_and_publish(s, tokens);
  act();
}

void Runner::resume(int32_t sequence, std::span<const int32_t> tokens, int64_t limit) {
  Sequence& s = opened(sequence);
  REPLAYSSM_CHECK(s.n_pending == 0, s.n_pending, " tokens are pending");
  if (memory_.cache().peek(tokens, limit).position <= s.state.n) return;
  memory_.adopt(s, tokens, limit);
  // Were the slot shared by sequences, a pass could need a slot more than there are.
  memory_.own_checkpoint(s);
  act();
}

void Runner::forget() { memory_.drop_cache(); }

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
  windows_.clear();
  for (const Window& window : windows) {
    Sequence& s = sequences_[window.sequence];
    REPLAYSSM_CHECK(s.last_pass != n_passes_, "two windows of sequence ", window.sequence);
    s.last_pass = n_passes_;
    const Phase phase = window.prefill ? Phase::kSweep : Phase::kStep;
    const auto size = static_cast<int32_t>(window.tokens.size());
    Row row{.n = s.state.n,
            .c = s.state.c,
            .start = s.state.n + window.pending,
            .n_tokens = size,
            .ring_slot = s.state.ring_slot};
    // There are as many pages and slots as all sequences need at their longest.
    const bool placed =
        memory_.ensure_pages(s, row.start + size) && memory_.place_fold(s, phase, row);
    REPLAYSSM_CHECK(placed, "no memory for sequence ", window.sequence);
    windows_.add(row, phase, s.pages.data(), window.tokens, window.n_logits);
    s.n_pending = window.prefill ? 0 : window.pending + size;
  }
  act();
  const float* logits = backend_->run(windows_.batch(), {}).logits;
  for (size_t i = 0; i < windows.size(); ++i) {
    const ForwardRow& row = windows_.rows()[i];
    traffic_.add(memory_sizes_, *model_, row.row, windows[i].prefill);
    // All of a prefill; of a step, its fold.
    memory_.commit(sequences_[windows[i].sequence], row.phase, row.row, 0, false);
  }
  ++n_passes_;
  return logits;
}

std::vector<int32_t> Runner::draft(int32_t sequence, int32_t last, int32_t k, ops::Sampler& sampler,
                                   const ops::SamplerParams& sampling) {
  Sequence& s = opened(sequence);
  REPLAYSSM_CHECK(s.n_pending == 0 && s.state.n + k <= limits_.max_positions, k, " drafts at ",
                  s.state.n, " with ", s.n_pending, " pending");
  REPLAYSSM_CHECK(memory_.ensure_pages(s, s.state.n + k), "no memory for sequence ", sequence);
  act();
  MtpJob job{{last, s.state.n, s.pages.data(), s.state.ring_slot}, k, sampling};
  draft_by_mtp(*backend_, sampler, model_->spec().vocab, {&job, 1});
  return std::move(job.drafts);
}

void Runner::advance(int32_t sequence, int64_t count) {
  Sequence& s = opened(sequence);
  REPLAYSSM_CHECK(count >= 0 && count <= s.n_pending, "advance of ", count, " with ", s.n_pending,
                  " fed");
  s.state.n += count;
  s.n_pending = 0;
}

}  // namespace replayssm
