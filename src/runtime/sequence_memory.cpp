#include "runtime/sequence_memory.h"

#include <algorithm>

#include "core/error.h"

namespace replayssm {
namespace {

constexpr int64_t kPage = ops::kKvPage;

}  // namespace

SequenceMemory::SequenceMemory(const SequenceMemoryOptions& options)
    : grid_(options.grid),
      tell_evictions_(options.tell_evictions),
      slots_(options.pools.checkpoint_slots),
      rings_(options.pools.ring_slots),
      pages_(options.pools.kv_pages),
      cache_(slots_, pages_, options.slot_bytes, options.page_bytes),
      slot_info_(static_cast<size_t>(options.pools.checkpoint_slots)) {
  if (!options.poison) return;
  const auto poison = [this](Action::Kind kind) {
    return [this, kind](int32_t i) { actions_.push_back({kind, i, -1, 0, {}}); };
  };
  slots_.on_free(poison(Action::Kind::kPoisonCheckpoint));
  rings_.on_free(poison(Action::Kind::kPoisonRing));
  pages_.on_free(poison(Action::Kind::kPoisonPage));
}

void SequenceMemory::open(HeldMemory& held) { held.state = {0, 0, -1, rings_.take().value()}; }

void SequenceMemory::release_state(HeldMemory& held) {
  for (const int32_t page : held.pages) pages_.release(page);
  held.pages.clear();
  if (held.state.checkpoint_slot >= 0) slots_.release(held.state.checkpoint_slot);
}

void SequenceMemory::free(HeldMemory& held) {
  release_state(held);
  if (held.state.ring_slot >= 0) rings_.release(held.state.ring_slot);
  held.state = {0, 0, -1, -1};
}

HeldMemory SequenceMemory::fork(const HeldMemory& held) {
  HeldMemory other = held;
  other.state.ring_slot = rings_.take().value();
  actions_.push_back({Action::Kind::kCopyRing, held.state.ring_slot, other.state.ring_slot, 0, {}});
  if (held.state.checkpoint_slot >= 0) slots_.retain(held.state.checkpoint_slot);
  for (const int32_t page : held.pages) pages_.retain(page);
  return other;
}

bool SequenceMemory::evict() {
  if (!tell_evictions_) return cache_.evict(nullptr);
  return cache_.evict([this](const PrefixCache::Evicted& gone) {
    actions_.push_back({Action::Kind::kEvict, -1, -1, std::ssize(gone.tokens), gone});
  });
}

void SequenceMemory::drop_cache() {
  while (evict()) continue;
}

std::optional<int32_t> SequenceMemory::allocate_slot() {
  while (slots_.n_free() == 0) {
    if (!evict()) return std::nullopt;
  }
  return slots_.take();
}

bool SequenceMemory::ensure_pages(HeldMemory& held, int64_t end,
                                  const std::function<bool()>& preempt) {
  for (int64_t i = held.state.n / kPage; i < ops::pages_for(end); ++i) {
    const auto at = static_cast<size_t>(i);
    // Once whoever shares a page has dropped it, the page is the sequence's own, too.
    const auto owned = [&] { return at < held.pages.size() && pages_.refs(held.pages[at]) == 1; };
    while (!owned() && pages_.n_free() == 0) {
      if (!evict() && !(preempt && preempt())) return false;
    }
    if (owned()) continue;
    const int32_t page = *pages_.take();
    if (at == held.pages.size()) {
      held.pages.push_back(page);
      continue;
    }
    const int32_t old = std::exchange(held.pages[at], page);
    if (i * kPage < held.state.n) {
      actions_.push_back({Action::Kind::kCopyPage, old, page, 0, {}});
    }
    pages_.release(old);
  }
  return true;
}

bool SequenceMemory::place_fold(const HeldMemory& held, Phase phase, Row& row) {
  const int32_t old = held.state.checkpoint_slot;
  if (row.c > 0) {
    REPLAYSSM_CHECK(slot(old).position == row.c, "slot ", old, " holds the state at ",
                    slot(old).position, ", not ", row.c);
  }
  row.read_slot = row.write_slot = std::max(old, 0);
  const int64_t end = phase == Phase::kSweep ? row.start + row.n_tokens : row.n;
  if (!grid_.fold_pending(end, row.c)) return true;
  const auto owned = [&] { return old >= 0 && slots_.refs(old) == 1; };
  while (!owned() && slots_.n_free() == 0) {
    if (!evict()) return false;
  }
  if (owned()) return true;
  row.write_slot = *slots_.take();
  if (old < 0) row.read_slot = row.write_slot;
  return true;
}

void SequenceMemory::commit(HeldMemory& held, Phase phase, const Row& row, int64_t n_commit,
                            bool conv_saved) {
  SequenceState& state = held.state;
  const SequenceState before = state;
  const Status status = phase == Phase::kSweep ? commit_sweep(grid_, row, state)
                                               : commit_step(grid_, row, n_commit, state);
  REPLAYSSM_CHECK(status == Status::kOk, "commit of ", n_commit);
  if (state.c == before.c) return;
  slot(state.checkpoint_slot) = {state.c, conv_saved};
  if (before.checkpoint_slot >= 0 && before.checkpoint_slot != state.checkpoint_slot) {
    slots_.release(before.checkpoint_slot);
  }
}

void SequenceMemory::save_conv(int32_t ring_slot, int32_t slot, int64_t position) {
  actions_.push_back({Action::Kind::kSaveConv, ring_slot, slot, position, {}});
}

void SequenceMemory::publish(HeldMemory& held, std::span<const int32_t> tokens) {
  const SequenceState& state = held.state;
  if (state.c == 0 || !slot(state.checkpoint_slot).has_conv) return;
  cache_.insert(tokens.first(static_cast<size_t>(state.c)), state.checkpoint_slot, held.pages);
}

void SequenceMemory::save_and_publish(HeldMemory& held, std::span<const int32_t> tokens) {
  const SequenceState& state = held.state;
  REPLAYSSM_CHECK(state.n == state.c && state.c > 0 && state.c <= std::ssize(tokens),
                  "a snapshot at ", state.n, " of ", tokens.size(), " tokens, checkpoint at ",
                  state.c);
  save_conv(state.ring_slot, state.checkpoint_slot, state.c);
  slot(state.checkpoint_slot).has_conv = true;
  publish(held, tokens);
}

void SequenceMemory::adopt(HeldMemory& held, std::span<const int32_t> tokens, int64_t limit) {
  PrefixCache::Hit hit = cache_.find(tokens, limit);
  REPLAYSSM_CHECK(
      hit.position > 0 && slot(hit.slot).position == hit.position && slot(hit.slot).has_conv,
      "no snapshot at ", hit.position);
  slots_.retain(hit.slot);
  for (const int32_t page : hit.pages) pages_.retain(page);
  release_state(held);
  held.pages = std::move(hit.pages);
  held.state.n = held.state.c = hit.position;
  held.state.checkpoint_slot = hit.slot;
  actions_.push_back({Action::Kind::kLoadConv, hit.slot, held.state.ring_slot, hit.position, {}});
}

void SequenceMemory::own_checkpoint(HeldMemory& held) {
  const int32_t shared = held.state.checkpoint_slot;
  const int32_t own = allocate_slot().value();
  actions_.push_back({Action::Kind::kCopyCheckpoint, shared, own, 0, {}});
  slot(own) = {held.state.c, false};
  slots_.release(shared);
  held.state.checkpoint_slot = own;
}

std::optional<SequenceMemory::Place> SequenceMemory::import(std::span<const int32_t> tokens) {
  const int64_t size = std::ssize(tokens);
  if (size == 0 || size % grid_.interval != 0) return {};
  if (cache_.peek(tokens, size).position == size) return {};
  if (pages_.n_free() + cache_.n_sole_pages({}) < ops::pages_for(size)) return {};
  Place place;
  const auto fresh = allocate_slot();
  if (!fresh) return {};
  place.slot = *fresh;
  while (std::ssize(place.pages) < ops::pages_for(size) && (pages_.n_free() > 0 || evict())) {
    if (const auto page = pages_.take()) place.pages.push_back(*page);
  }
  const bool whole = std::ssize(place.pages) == ops::pages_for(size);
  if (whole) {
    slot(place.slot) = {size, true};
    cache_.insert(tokens, place.slot, place.pages);
  }
  // The cache has references of its own.
  slots_.release(place.slot);
  for (const int32_t page : place.pages) pages_.release(page);
  if (!whole) return {};
  return place;
}

}  // namespace replayssm
