#include "runtime/scheduler.h"

#include <algorithm>

#include "core/error.h"

namespace replayssm {
namespace {

constexpr int64_t kPage = ops::kKvPage;
// What a snapshot at a prompt's end must save, over those before it, to be worth a window of its
// own.
constexpr int64_t kWorthACut = 64;

bool begins_alike(const Sequence& a, const Sequence& b, int64_t n) {
  return a.length() >= n && b.length() >= n &&
         std::equal(a.spec.tokens.begin(), a.spec.tokens.begin() + n, b.spec.tokens.begin());
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      memory_({options.grid, options.pools, options.slot_bytes, options.page_bytes, options.poison,
               options.tell_evictions}) {
  REPLAYSSM_CHECK(options.max_sequences == options.pools.ring_slots &&
                      options.max_sequences <= options.pools.checkpoint_slots,
                  options.max_sequences, " sequences, ", options.pools.ring_slots, " rings, ",
                  options.pools.checkpoint_slots, " slots");
  REPLAYSSM_CHECK(ops::pages_for(options.max_positions) <= options.pools.kv_pages,
                  options.max_positions, " positions, ", options.pools.kv_pages, " pages");
  REPLAYSSM_CHECK(options.chunk_tokens % options.grid.interval == 0 &&
                      options.score_tokens % options.grid.interval == 0 &&
                      options.chunk_tokens % options.score_tokens == 0,
                  "chunks of ", options.chunk_tokens, " and ", options.score_tokens);
}

void Scheduler::add(uint64_t request, SequenceSpec spec) {
  REPLAYSSM_CHECK(
      !spec.tokens.empty() && spec.n_choices >= 1 && spec.n_choices <= options_.max_sequences &&
          spec.max_length <= options_.max_positions && std::ssize(spec.tokens) <= spec.max_length,
      spec.tokens.size(), " tokens of ", spec.max_length, ", ", spec.n_choices, " choices");
  Sequence s;
  s.prompt_length = std::ssize(spec.tokens);
  s.drafts = DraftPolicy(std::min(spec.max_drafts, options_.max_window - 1), spec.adaptive);
  s.spec = std::move(spec);
  const bool added = sequences_.emplace(SequenceKey{request, 0}, std::move(s)).second;
  REPLAYSSM_CHECK(added, "request ", request, " twice");
}

const Sequence* Scheduler::find(const SequenceKey& key) const {
  const auto found = sequences_.find(key);
  return found == sequences_.end() ? nullptr : &found->second;
}

void Scheduler::release(Sequence& s) {
  if (s.state.ring_slot >= 0) rings_promised_ -= s.spec.n_choices - 1;
  memory_.free(s);
}

void Scheduler::remove(const SequenceKey& key) {
  const auto found = sequences_.find(key);
  if (found == sequences_.end()) return;
  release(found->second);
  sequences_.erase(found);
}

bool Scheduler::preempt(const SequenceKey& key) {
  const auto found = sequences_.find(key);
  if (found == sequences_.end() || found->second.stage != Sequence::Stage::kRunning) return false;
  Sequence& s = found->second;
  publish(s);
  release(s);
  s.stage = Sequence::Stage::kWaiting;
  ++s.preemptions;
  ++n_preemptions_;
  return true;
}

bool Scheduler::preempt_youngest_after(const SequenceKey& key) {
  for (auto it = sequences_.rbegin(); it != sequences_.rend() && key < it->first; ++it) {
    if (it->second.stage == Sequence::Stage::kClosing) {
      remove(it->first);
      return true;
    }
    if (preempt(it->first)) return true;
  }
  return false;
}

// ---- admission

bool Scheduler::uses_cache(const Sequence& s) const {
  return options_.prefix_cache && !s.spec.all_logits;
}

std::string Scheduler::note(const Sequence& s, const PrefixCache::Hit& hit) const {
  if (!options_.prefix_cache) return "the prefix cache is off";
  if (s.spec.all_logits) return "prompt logprobs need every position computed";
  const int64_t most = options_.grid.checkpoint_of(s.length() - 1);
  if (hit.position == most) return "";
  if (most == 0 || hit.matched == 0) return "no text with this beginning is known";
  return concat(hit.matched, " leading tokens are known, the nearest snapshot of them is at ",
                hit.position);
}

// Goes on from the longest snapshot that is known, if that is further than the sequence is.
void Scheduler::adopt(Sequence& s) {
  PrefixCache::Hit hit;
  if (uses_cache(s)) hit = memory_.cache().peek(s.spec.tokens, s.length() - 1);
  const bool first = !s.admitted;
  if (first) s.cache_note = note(s, hit);
  if (hit.position <= s.state.n) return;
  if (s.preemptions == 0) {
    s.cached_tokens += hit.position - s.state.n;
    if (!first) s.cache_note = note(s, hit);
  }
  memory_.adopt(s, s.spec.tokens, s.length() - 1);
}

bool Scheduler::admit(Sequence& s) {
  if (memory_.rings().n_free() - rings_promised_ < s.spec.n_choices) return false;
  PrefixCache::Hit hit;
  if (uses_cache(s)) hit = memory_.cache().peek(s.spec.tokens, s.length() - 1);
  // The pages of a hit are not there to be evicted.
  const int64_t need =
      std::min(ops::pages_for(s.length() + 1), ops::pages_for(options_.max_positions)) -
      std::ssize(hit.pages);
  if (memory_.pages().n_free() < need &&
      memory_.pages().n_free() + memory_.cache().n_sole_pages(hit.pages) < need) {
    return false;
  }
  s.stage = Sequence::Stage::kRunning;
  memory_.open(s);
  rings_promised_ += s.spec.n_choices - 1;
  adopt(s);
  s.admitted = true;
  return true;
}

void Scheduler::admit_waiting() {
  for (auto& [key, s] : sequences_) {
    if (s.stage == Sequence::Stage::kWaiting && !admit(s)) return;
  }
}

// ---- a step

// The first cut point in (from, to]: the rule's, or the prompt's last grid point that a request for
// the same may go on from, if no other lies close before it.
std::optional<int64_t> Scheduler::cut(const Sequence& s, int64_t from, int64_t to) const {
  const auto first = next_cut(options_.cuts, s.spec.tokens, from, to);
  const int64_t end = options_.grid.checkpoint_of(s.prompt_length - 1);
  if (end <= from || end > first.value_or(to)) return first;
  const int64_t close = std::max<int64_t>(0, end - kWorthACut);
  return next_cut(options_.cuts, s.spec.tokens, close, end) ? first : end;
}

// Where the next window of a prefill ends: a function of the tokens and the position.
int64_t Scheduler::chunk_end(const Sequence& s) const {
  const int64_t chunk = s.spec.all_logits ? options_.score_tokens : options_.chunk_tokens;
  const int64_t end = std::min(s.length(), (s.state.n / chunk + 1) * chunk);
  if (!options_.prefix_cache) return end;
  return cut(s, s.state.n, end).value_or(end);
}

// A finished sequence folds its last checkpoint in this step, and this one may go on from there.
bool Scheduler::closing_leaves_more(const Sequence& s) const {
  return uses_cache(s) && std::ranges::any_of(sequences_, [&](const auto& entry) {
           const Sequence& o = entry.second;
           const int64_t at = options_.grid.checkpoint_of(o.state.n);
           return o.stage == Sequence::Stage::kClosing && at > s.state.n && at < s.length() &&
                  begins_alike(o, s, at);
         });
}

std::vector<SequenceKey> Scheduler::choose() {
  std::vector<SequenceKey> chosen;
  std::vector<SequenceKey> prefills;
  for (const auto& [key, s] : sequences_) {
    if (s.stage == Sequence::Stage::kWaiting) continue;
    (s.stage == Sequence::Stage::kRunning && s.left() > 1 ? prefills : chosen).push_back(key);
  }
  const auto next = std::ranges::upper_bound(prefills, last_prefill_);
  std::ranges::rotate(prefills, next);
  int64_t room = options_.chunk_tokens;
  int64_t score_room = options_.score_tokens;
  std::vector<SequenceKey> taken;
  for (const SequenceKey& key : prefills) {
    Sequence& s = sequences_.at(key);
    adopt(s);
    if (s.left() > 1) {
      const int64_t end = chunk_end(s);
      // Another computes the same now and leaves a snapshot: wait for it.
      const bool twin = uses_cache(s) && end < s.length() &&
                        std::ranges::any_of(
                            taken,
                            [&](const SequenceKey& other) {
                              const Sequence& o = sequences_.at(other);
                              return o.state.n == s.state.n && chunk_end(o) == end &&
                                     cut(o, end - 1, end) && begins_alike(o, s, end);
                            });
      if (twin || closing_leaves_more(s)) continue;
      const int64_t size = end - s.state.n;
      if (size > room || (s.spec.all_logits && size > score_room)) break;
      room -= size;
      if (s.spec.all_logits) score_room -= size;
      taken.push_back(key);
      last_prefill_ = key;
    }
    chosen.push_back(key);
  }
  std::ranges::sort(chosen);
  return chosen;
}

// A step's fold also saves its conv rows, so that it can be published.
bool Scheduler::place_fold(const Sequence& s, StepRow& row) {
  const Row& r = row.row;
  if (!memory_.place_fold(s, row.phase, row.row)) return false;
  if (row.phase == Phase::kStep && options_.grid.fold_pending(r.n, r.c)) {
    memory_.save_conv(r.ring_slot, r.write_slot, options_.grid.checkpoint_of(r.n));
  }
  return true;
}

bool Scheduler::reserve(const SequenceKey& key, Sequence& s, StepRow& row) {
  row.key = key;
  Row& r = row.row;
  r.n = r.start = s.state.n;
  r.c = s.state.c;
  r.ring_slot = s.state.ring_slot;
  if (s.stage == Sequence::Stage::kClosing) {
    row.only_folds = true;
    if (place_fold(s, row)) return true;
    remove(key);
    return false;
  }
  if (s.left() > 1) {
    row.phase = Phase::kSweep;
    const int64_t end = chunk_end(s);
    r.n_tokens = static_cast<int32_t>(end - s.state.n);
    row.save_conv = end % options_.grid.interval == 0;
    row.all_logits = s.spec.all_logits && s.state.n < s.prompt_length;
    row.ends_text = end == s.length();
  } else {
    r.n_tokens = 1;
    row.all_logits = s.spec.all_logits && s.state.n < s.prompt_length;
    row.ends_text = true;
    const int64_t wanted = s.spec.max_length - s.length();
    // Drafts follow a token that the sequence has drawn itself.
    if (s.length() > s.prompt_length && wanted > 1) {
      row.max_drafts = static_cast<int32_t>(std::min<int64_t>(s.drafts.next(cost_), wanted - 1));
    }
  }
  if (!memory_.ensure_pages(s, r.start + r.n_tokens + row.max_drafts,
                            [&] { return preempt_youngest_after(key); })) {
    preempt(key);
    return false;
  }
  if (!place_fold(s, row)) return false;
  row.pages = s.pages;
  return true;
}

StepPlan Scheduler::plan() {
  admit_waiting();
  StepPlan plan;
  for (const SequenceKey& key : choose()) {
    const auto found = sequences_.find(key);
    // An older sequence may have needed its memory.
    if (found == sequences_.end() || found->second.stage == Sequence::Stage::kWaiting) continue;
    StepRow row;
    if (reserve(key, found->second, row)) plan.rows.push_back(std::move(row));
  }
  plan.actions = memory_.take_actions();
  return plan;
}

// ---- afterwards

// The state at the stored checkpoint goes to the cache.
void Scheduler::publish(Sequence& s) {
  if (options_.prefix_cache) memory_.publish(s, s.spec.tokens);
}

// The other choices of a prompt: they share its checkpoint and pages and copy its ring.
void Scheduler::fork(const SequenceKey& key, Sequence& s) {
  const int32_t n = std::exchange(s.spec.n_choices, 1);
  rings_promised_ -= n - 1;
  for (int32_t i = 1; i < n; ++i) {
    Sequence other = s;
    other.preemptions = 0;
    static_cast<HeldMemory&>(other) = memory_.fork(s);
    sequences_.emplace(SequenceKey{key.request, i}, std::move(other));
  }
}

// What a finished sequence leaves is its last checkpoint: one more fold if that lags.
void Scheduler::finish(const SequenceKey& key, Sequence& s) {
  if (options_.prefix_cache && options_.grid.fold_pending(s.state.n, s.state.c)) {
    s.stage = Sequence::Stage::kClosing;
    return;
  }
  publish(s);
  remove(key);
}

void Scheduler::commit_row(const StepRow& row, const RowResult& result) {
  Sequence& s = sequences_.at(row.key);
  const int64_t old_c = s.state.c;
  Row fed = row.row;
  REPLAYSSM_CHECK(result.n_tokens >= fed.n_tokens &&
                      result.n_tokens <= fed.n_tokens + row.max_drafts && result.n_commit >= 0 &&
                      result.n_commit <= result.n_tokens,
                  result.n_commit, " of ", result.n_tokens, " fed are committed, planned ",
                  fed.n_tokens, " and ", row.max_drafts, " drafts");
  fed.n_tokens = result.n_tokens;
  const bool is_sweep = row.phase == Phase::kSweep;
  REPLAYSSM_CHECK(!is_sweep || result.n_commit == fed.n_tokens, "a sweep is committed as a whole");
  memory_.commit(s, row.phase, fed, result.n_commit, !is_sweep || row.save_conv);
  if (row.only_folds) {
    publish(s);
    remove(row.key);
    return;
  }
  if (s.state.c != old_c && cut(s, s.state.c - 1, s.state.c)) publish(s);
  s.drafts.observe(result.n_tokens - row.row.n_tokens, result.accepted);
  if (!row.ends_text) return;
  REPLAYSSM_CHECK(std::ssize(result.choices) == s.spec.n_choices, result.choices.size(),
                  " choices of ", s.spec.n_choices);
  if (s.spec.n_choices > 1) fork(row.key, s);
  for (size_t i = 0; i < result.choices.size(); ++i) {
    const auto& choice = result.choices[i];
    const SequenceKey key{row.key.request, row.key.choice + static_cast<int32_t>(i)};
    Sequence& text = sequences_.at(key);
    auto& tokens = text.spec.tokens;
    tokens.insert(tokens.end(), choice.tokens.begin(), choice.tokens.end());
    REPLAYSSM_CHECK(text.length() <= text.spec.max_length && text.left() >= 0 &&
                        (choice.ended || text.left() == 1),
                    text.length(), " tokens of ", text.spec.max_length, ", n ", text.state.n);
    if (choice.ended) finish(key, text);
  }
}

void Scheduler::commit(const StepPlan& plan, const StepResult& result) {
  REPLAYSSM_CHECK(plan.rows.size() == result.rows.size(), plan.rows.size(), " rows, ",
                  result.rows.size(), " results");
  for (size_t i = 0; i < plan.rows.size(); ++i) commit_row(plan.rows[i], result.rows[i]);
}

void Scheduler::resolve(const SequenceKey& key, std::optional<int32_t> token) {
  const auto found = sequences_.find(key);
  if (found == sequences_.end()) return;
  auto& tokens = found->second.spec.tokens;
  REPLAYSSM_CHECK(tokens.back() == kUnknownToken, "a known token is resolved");
  if (token) {
    tokens.back() = *token;
  } else {
    tokens.pop_back();
  }
}

// A step takes two pages at most; prompts take a chunk's.
bool Scheduler::has_slack() const {
  const int64_t most = 2 * std::ssize(sequences_) + options_.chunk_tokens / kPage;
  return memory_.pages().n_free() >= most ||
         memory_.pages().n_free() + memory_.cache().n_sole_pages({}) >= most;
}

void Scheduler::observe(const PassCost& cost) {
  if (cost.tokens == 0) return;
  cost_.observe(cost.tokens, cost.seconds, cost.new_tokens, cost.drafted, cost.draft_seconds);
}

std::optional<SequenceMemory::Place> Scheduler::import(std::span<const int32_t> tokens) {
  if (!options_.prefix_cache) return {};
  return memory_.import(tokens);
}

}  // namespace replayssm
