// A scheduler's traces over memory that is not there: every slot, row and page remembers which text
// it was written for, and every read checks it. What it "writes" next is a function of the text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "core/error.h"
#include "runtime/scheduler.h"

namespace replayssm {

constexpr uint64_t kPoison = ~uint64_t{0};
constexpr int32_t kFakeVocab = 7;

// Of the first n tokens.
inline uint64_t text_hash(std::span<const int32_t> tokens, int64_t n) {
  uint64_t hash = 1469598103934665603u;
  for (int64_t i = 0; i < n; ++i) {
    hash = (hash ^ static_cast<uint64_t>(tokens[static_cast<size_t>(i)] + 1)) * 1099511628211u;
  }
  return hash >> 1;  // never kPoison
}

inline int32_t next_token(std::span<const int32_t> text, int32_t choice) {
  return static_cast<int32_t>((text_hash(text, std::ssize(text)) + static_cast<uint64_t>(choice)) %
                              kFakeVocab);
}

// Memory as StatePool has it. An entry is the hash of the text up to and with its position.
class FakeMemory {
 public:
  static constexpr int64_t kConv = 3;  // w - 1

  explicit FakeMemory(const SchedulerOptions& options)
      : options_(options),
        slots_(static_cast<size_t>(options.pools.checkpoint_slots), kPoison),
        beside_(slots_.size(), std::vector<uint64_t>(kConv, kPoison)),
        rings_(static_cast<size_t>(options.pools.ring_slots),
               std::vector<uint64_t>(static_cast<size_t>(options.grid.ring_rows), kPoison)),
        convs_(rings_.size(),
               std::vector<uint64_t>(static_cast<size_t>(kConv + options.max_window), kPoison)),
        pages_(static_cast<size_t>(options.pools.kv_pages),
               std::vector<uint64_t>(ops::kKvPage, kPoison)) {}

  void act(const Action& a) {
    const auto at = [](auto& list, int32_t i) -> auto& { return list.at(static_cast<size_t>(i)); };
    const auto fill = [](std::vector<uint64_t>& list) {
      std::fill(list.begin(), list.end(), kPoison);
    };
    switch (a.kind) {
      case Action::Kind::kCopyPage:
        at(pages_, a.b) = at(pages_, a.a);
        break;
      case Action::Kind::kCopyRing:
        at(rings_, a.b) = at(rings_, a.a);
        at(convs_, a.b) = at(convs_, a.a);
        break;
      case Action::Kind::kCopyCheckpoint:
        at(slots_, a.b) = at(slots_, a.a);
        break;
      case Action::Kind::kSaveConv:
        save_conv(a.a, a.b, a.position);
        break;
      case Action::Kind::kLoadConv:
        for (int64_t i = 0; i < kConv; ++i) {
          const int64_t t = a.position - kConv + i;
          if (t >= 0) conv(a.b, t) = at(beside_, a.a)[static_cast<size_t>(i)];
        }
        break;
      case Action::Kind::kEvict:
        check_snapshot(a.gone);
        break;
      case Action::Kind::kPoisonCheckpoint:
        at(slots_, a.a) = kPoison;
        fill(at(beside_, a.a));
        break;
      case Action::Kind::kPoisonRing:
        fill(at(rings_, a.a));
        fill(at(convs_, a.a));
        break;
      case Action::Kind::kPoisonPage:
        fill(at(pages_, a.a));
        break;
    }
  }

  // A snapshot is what it says.
  void check_snapshot(const PrefixCache::Evicted& s) {
    const int64_t n = std::ssize(s.tokens);
    REPLAYSSM_CHECK(n % options_.grid.interval == 0 && n > 0, "a snapshot at ", n);
    REPLAYSSM_CHECK(slots_[static_cast<size_t>(s.slot)] == text_hash(s.tokens, n), "slot ", s.slot,
                    " of the snapshot at ", n);
    for (int64_t i = 0; i < kConv; ++i) {
      if (n - kConv + i < 0) continue;
      REPLAYSSM_CHECK(beside_[static_cast<size_t>(s.slot)][static_cast<size_t>(i)] ==
                          text_hash(s.tokens, n - kConv + i + 1),
                      "conv rows of the snapshot at ", n);
    }
    for (int64_t t = 0; t < n; ++t) {
      REPLAYSSM_CHECK(page_entry(s.pages, t) == text_hash(s.tokens, t + 1), "page of ", t,
                      " of the snapshot at ", n);
    }
  }

  // A snapshot that comes from elsewhere.
  void fill(const SequenceMemory::Place& place, std::span<const int32_t> tokens) {
    const int64_t n = std::ssize(tokens);
    slots_.at(static_cast<size_t>(place.slot)) = text_hash(tokens, n);
    for (int64_t i = 0; i < kConv; ++i) {
      beside_[static_cast<size_t>(place.slot)][static_cast<size_t>(i)] =
          text_hash(tokens, std::max<int64_t>(n - kConv + i + 1, 0));
    }
    for (int64_t t = 0; t < n; ++t) {
      const int32_t page = place.pages.at(static_cast<size_t>(t / ops::kKvPage));
      pages_.at(static_cast<size_t>(page))[static_cast<size_t>(t % ops::kKvPage)] =
          text_hash(tokens, t + 1);
    }
  }

  // A whole pass: reads first, then writes, as its rows run at once. texts[i]: known tokens of row
  // i, then what it feeds.
  void run(const std::vector<StepRow>& rows, const std::vector<std::vector<int32_t>>& texts,
           const std::vector<int64_t>& n_tokens, const RefPool& slots, const RefPool& pages) {
    std::set<int32_t> read, written, pages_written;
    for (size_t i = 0; i < rows.size(); ++i) {
      check_reads(rows[i], texts[i]);
      if (rows[i].row.c > 0) read.insert(rows[i].row.read_slot);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const Row& r = rows[i].row;
      const int64_t end = r.start + n_tokens[i];
      const bool sweep = rows[i].phase == Phase::kSweep;
      const int64_t at = options_.grid.checkpoint_of(sweep ? end : r.n);
      if (at > r.c) {
        REPLAYSSM_CHECK(written.insert(r.write_slot).second, "slot ", r.write_slot, " twice");
        REPLAYSSM_CHECK(slots.refs(r.write_slot) == 1, "slot ", r.write_slot, " is shared");
        REPLAYSSM_CHECK(r.write_slot == r.read_slot || !read.contains(r.write_slot) || r.c == 0,
                        "slot ", r.write_slot, " is read by another row");
        slots_[static_cast<size_t>(r.write_slot)] = text_hash(texts[i], at);
      }
      for (int64_t t = r.start; t < end; ++t) {
        const int32_t page = rows[i].pages.at(static_cast<size_t>(t / ops::kKvPage));
        REPLAYSSM_CHECK(pages.refs(page) == 1, "page ", page, " is shared");
        REPLAYSSM_CHECK(
            t % ops::kKvPage != 0 && t != r.start ? true : pages_written.insert(page).second,
            "page ", page, " twice");
        const uint64_t hash = text_hash(texts[i], t + 1);
        pages_[static_cast<size_t>(page)][static_cast<size_t>(t % ops::kKvPage)] = hash;
        rings_[static_cast<size_t>(r.ring_slot)][static_cast<size_t>(options_.grid.row_of(t))] =
            hash;
        conv(r.ring_slot, t) = hash;
      }
      if (rows[i].save_conv) save_conv(r.ring_slot, r.write_slot, end);
    }
  }

 private:
  uint64_t& conv(int32_t ring, int64_t t) {
    auto& rows = convs_.at(static_cast<size_t>(ring));
    return rows[static_cast<size_t>(t % std::ssize(rows))];
  }
  void save_conv(int32_t ring, int32_t slot, int64_t position) {
    for (int64_t i = 0; i < kConv; ++i) {
      const int64_t t = position - kConv + i;
      if (t >= 0) beside_.at(static_cast<size_t>(slot))[static_cast<size_t>(i)] = conv(ring, t);
    }
  }
  uint64_t page_entry(const std::vector<int32_t>& pages, int64_t t) const {
    const int32_t page = pages.at(static_cast<size_t>(t / ops::kKvPage));
    return pages_.at(static_cast<size_t>(page))[static_cast<size_t>(t % ops::kKvPage)];
  }
  void check_reads(const StepRow& row, const std::vector<int32_t>& text) {
    const Row& r = row.row;
    const auto& ring = rings_.at(static_cast<size_t>(r.ring_slot));
    if (r.c > 0) {
      REPLAYSSM_CHECK(slots_.at(static_cast<size_t>(r.read_slot)) == text_hash(text, r.c),
                      "the checkpoint at ", r.c, " in slot ", r.read_slot);
    }
    for (int64_t t = r.c; t < r.n; ++t) {
      REPLAYSSM_CHECK(ring[static_cast<size_t>(options_.grid.row_of(t))] == text_hash(text, t + 1),
                      "ring row of ", t, " with n ", r.n, " c ", r.c);
    }
    if (row.only_folds) return;
    for (int64_t t = std::max<int64_t>(0, r.start - kConv); t < r.start; ++t) {
      REPLAYSSM_CHECK(conv(r.ring_slot, t) == text_hash(text, t + 1), "conv row of ", t);
    }
    for (int64_t t = 0; t < r.start; ++t) {
      REPLAYSSM_CHECK(page_entry(row.pages, t) == text_hash(text, t + 1), "page of ", t);
    }
  }

  SchedulerOptions options_;
  std::vector<uint64_t> slots_;
  std::vector<std::vector<uint64_t>> beside_, rings_, convs_, pages_;
};

// Where a trace's choices come from: a generator, or a fuzzer's bytes.
class Dice {
 public:
  virtual ~Dice() = default;
  virtual uint32_t roll(uint32_t sides) = 0;  // in [0, sides)
};

// A scheduler, its memory and its requests; every step checks that nothing leaks or is held twice.
class FakeEngine {
 public:
  FakeEngine(const SchedulerOptions& options, Dice& dice)
      : options_(options), dice_(dice), memory_(options), scheduler_(options) {}

  Scheduler& scheduler() { return scheduler_; }

  void add(std::vector<int32_t> prompt, int32_t n_choices, int64_t new_tokens, bool all_logits,
           bool adaptive) {
    SequenceSpec spec;
    spec.max_length = std::min(options_.max_positions, std::ssize(prompt) + new_tokens);
    spec.tokens = std::move(prompt);
    spec.n_choices = n_choices;
    spec.all_logits = all_logits;
    spec.max_drafts = options_.max_window - 1;
    spec.adaptive = adaptive;
    const uint64_t request = next_request_++;
    wanted_[request] = n_choices;
    scheduler_.add(request, std::move(spec));
  }
  // As a snapshot from disk is taken in.
  void import(std::vector<int32_t> tokens) {
    tokens.resize(tokens.size() / static_cast<size_t>(options_.grid.interval) *
                  static_cast<size_t>(options_.grid.interval));
    const auto place = scheduler_.import(tokens);
    for (const Action& action : scheduler_.take_actions()) memory_.act(action);
    if (place) memory_.fill(*place, tokens);
    check_counts();
  }
  void cancel(const SequenceKey& key) {
    const Sequence* s = scheduler_.find(key);
    if (s == nullptr || s->stage == Sequence::Stage::kClosing) return;
    wanted_[key.request] -= s->spec.n_choices;
    scheduler_.remove(key);
  }

  // False if there was nothing to do.
  bool step() {
    const StepPlan plan = scheduler_.plan();
    for (const Action& action : plan.actions) memory_.act(action);
    if (plan.rows.empty()) {
      check_counts();
      return !plan.actions.empty();
    }
    std::vector<std::vector<int32_t>> texts;
    std::vector<int64_t> n_tokens;
    StepResult result;
    int64_t prefill = 0, all_logits = 0;
    for (const StepRow& row : plan.rows) {
      const Sequence& s = *scheduler_.find(row.key);
      std::vector<int32_t> text = s.spec.tokens;
      REPLAYSSM_CHECK(row.row.start + row.row.n_tokens <= std::ssize(text), "fed past the text");
      const auto drafts = drafts_of(row, s);
      text.insert(text.end(), drafts.begin(), drafts.end());
      result.rows.push_back(outcome(row, s, drafts));
      n_tokens.push_back(result.rows.back().n_tokens);
      REPLAYSSM_CHECK(row.row.start + n_tokens.back() <= options_.max_positions,
                      "past the context");
      texts.push_back(std::move(text));
      if (row.phase == Phase::kSweep) {
        prefill += row.row.n_tokens;
        if (row.all_logits) all_logits += row.row.n_tokens;
      }
    }
    REPLAYSSM_CHECK(prefill <= options_.chunk_tokens, prefill, " tokens of prefill");
    REPLAYSSM_CHECK(all_logits <= options_.score_tokens, all_logits, " logit rows of prefill");
    memory_.run(plan.rows, texts, n_tokens, scheduler_.memory().slots(),
                scheduler_.memory().pages());
    PassCost cost;
    for (size_t i = 0; i < result.rows.size(); ++i) {
      cost.tokens += result.rows[i].n_tokens;
      cost.drafted += result.rows[i].n_tokens - plan.rows[i].row.n_tokens;
      for (const auto& choice : result.rows[i].choices)
        cost.new_tokens += std::ssize(choice.tokens);
    }
    cost.seconds = 1e-3 * (1 + dice_.roll(4));
    cost.draft_seconds = 1e-4 * dice_.roll(4);
    scheduler_.commit(plan, result);
    scheduler_.observe(cost);
    check_counts();
    return true;
  }

  // Runs until every text has ended, in a number of steps that a live scheduler needs.
  void finish() {
    int64_t left = 200;
    for (const auto& [key, s] : scheduler_.sequences()) {
      left += 20 * (s.spec.max_length + 10) * s.spec.n_choices;
    }
    while (!scheduler_.idle()) {
      REPLAYSSM_CHECK(left-- > 0, "texts wait for ever");
      step();
    }
    for (const auto& [request, n] : wanted_) {
      REPLAYSSM_CHECK(n == 0, "request ", request, " lacks ", n, " choices");
    }
    for (const Action& action : scheduler_.take_actions()) memory_.act(action);
    for (const auto& snapshot : scheduler_.memory().cache().all()) memory_.check_snapshot(snapshot);
    check_counts();
    REPLAYSSM_CHECK(scheduler_.memory().rings().n_free() == scheduler_.memory().rings().size(),
                    "rings are lost");
  }

  int64_t n_accepted() const { return n_accepted_; }

 private:
  // Some right, some wrong.
  std::vector<int32_t> drafts_of(const StepRow& row, const Sequence& s) {
    std::vector<int32_t> text = s.spec.tokens, out;
    const uint32_t n =
        row.max_drafts > 0 ? dice_.roll(static_cast<uint32_t>(row.max_drafts + 1)) : 0;
    for (uint32_t i = 0; i < n; ++i) {
      int32_t id = next_token(text, row.key.choice);
      if (dice_.roll(3) == 0) id = (id + 1) % kFakeVocab;
      text.push_back(id);
      out.push_back(id);
    }
    return out;
  }

  RowResult outcome(const StepRow& row, const Sequence& s, const std::vector<int32_t>& drafts) {
    RowResult result;
    result.n_tokens = row.row.n_tokens + static_cast<int32_t>(drafts.size());
    result.n_commit = row.phase == Phase::kSweep ? result.n_tokens : 0;
    if (row.only_folds || !row.ends_text) return result;
    for (int32_t i = 0; i < s.spec.n_choices; ++i) {
      RowResult::Choice choice;
      std::vector<int32_t> text = s.spec.tokens;
      int32_t stand = 0;
      for (bool agrees = true; agrees && !choice.ended; ++stand) {
        if (std::ssize(text) == s.spec.max_length) {
          choice.ended = true;
          break;
        }
        const int32_t id = next_token(text, row.key.choice + i);
        if (dice_.roll(40) == 0) {  // a stop
          choice.ended = true;
          continue;
        }
        agrees = stand < std::ssize(drafts) && drafts[static_cast<size_t>(stand)] == id;
        if (agrees) ++result.accepted;
        choice.tokens.push_back(id);
        text.push_back(id);
        choice.ended = std::ssize(text) == s.spec.max_length;
      }
      if (row.phase == Phase::kStep) result.n_commit = std::max(stand, 1);
      if (choice.ended) --wanted_[row.key.request];
      result.choices.push_back(std::move(choice));
    }
    n_accepted_ += result.accepted;
    return result;
  }

  // Every reference has an owner, and every owner its reference.
  void check_counts() const {
    const auto pools = {&scheduler_.memory().slots(), &scheduler_.memory().pages(),
                        &scheduler_.memory().rings()};
    std::vector<std::map<int32_t, int32_t>> held(3);
    for (const auto& [key, s] : scheduler_.sequences()) {
      if (s.state.checkpoint_slot >= 0) ++held[0][s.state.checkpoint_slot];
      for (const int32_t page : s.pages) ++held[1][page];
      if (s.state.ring_slot >= 0) ++held[2][s.state.ring_slot];
      REPLAYSSM_CHECK((s.stage == Sequence::Stage::kWaiting) == (s.state.ring_slot < 0),
                      "a waiting text holds memory");
    }
    // The cache holds a page once for each beginning that ends with it.
    std::set<std::pair<int32_t, uint64_t>> nodes;
    std::set<int32_t> cached;
    for (const auto& snapshot : scheduler_.memory().cache().all()) {
      ++held[0][snapshot.slot];
      cached.insert(snapshot.pages.begin(), snapshot.pages.end());
      for (size_t i = 0; i < snapshot.pages.size(); ++i) {
        const int64_t end =
            std::min(std::ssize(snapshot.tokens), static_cast<int64_t>(i + 1) * ops::kKvPage);
        nodes.emplace(snapshot.pages[i], text_hash(snapshot.tokens, end));
      }
    }
    for (const auto& node : nodes) ++held[1][node.first];
    REPLAYSSM_CHECK(scheduler_.memory().cache().n_pages() == std::ssize(cached),
                    "cached pages miscounted");
    size_t kind = 0;
    for (const RefPool* pool : pools) {
      int32_t n_free = 0;
      for (int32_t i = 0; i < pool->size(); ++i) {
        const auto found = held[kind].find(i);
        const int32_t owners = found == held[kind].end() ? 0 : found->second;
        REPLAYSSM_CHECK(pool->refs(i) == owners, "index ", i, " of kind ", kind, " has ",
                        pool->refs(i), " references and ", owners, " owners");
        n_free += owners == 0;
      }
      REPLAYSSM_CHECK(pool->n_free() == n_free, "free lists of kind ", kind);
      ++kind;
    }
  }

  SchedulerOptions options_;
  Dice& dice_;
  FakeMemory memory_;
  Scheduler scheduler_;
  std::map<uint64_t, int64_t> wanted_;  // choices still to end
  uint64_t next_request_ = 1;
  int64_t n_accepted_ = 0;
};

// Tight pools, so that all that can be short is short.
inline SchedulerOptions tight_options(Dice& dice) {
  SchedulerOptions o;
  o.tell_evictions = true;
  o.grid.interval = dice.roll(2) == 0 ? 8 : 16;
  o.max_window = 1 + static_cast<int32_t>(dice.roll(5));
  o.grid.ring_rows = Grid::rows_for(o.grid.interval, o.max_window);
  o.max_positions = 40 + dice.roll(120);
  o.max_sequences = 1 + static_cast<int32_t>(dice.roll(5));
  o.pools.ring_slots = o.max_sequences;
  o.pools.checkpoint_slots = o.max_sequences + static_cast<int32_t>(dice.roll(6));
  o.pools.kv_pages = static_cast<int32_t>((o.max_positions + 15) / 16 + dice.roll(12));
  o.chunk_tokens = 64;
  o.score_tokens = dice.roll(2) == 0 ? 32 : 64;
  o.prefix_cache = dice.roll(8) != 0;
  o.cuts = {o.grid.interval, dice.roll(2) == 0 ? 0 : 20 + dice.roll(30), {5}};
  o.slot_bytes = 1000;
  o.page_bytes = 1 + dice.roll(500);
  o.poison = true;
  return o;
}

// A random trace to its end.
inline void run_trace(Dice& dice, uint32_t n_events) {
  const SchedulerOptions options = tight_options(dice);
  FakeEngine engine(options, dice);
  std::vector<std::vector<int32_t>> known = {{}};  // beginnings to go on from
  for (uint32_t event = 0; event < n_events; ++event) {
    const auto any_key = [&] {
      std::vector<SequenceKey> keys;
      for (const auto& item : engine.scheduler().sequences()) keys.push_back(item.first);
      return keys.empty() ? SequenceKey{} : keys[dice.roll(static_cast<uint32_t>(keys.size()))];
    };
    switch (dice.roll(8)) {
      case 0:
      case 1: {
        if (engine.scheduler().sequences().size() > 12) break;
        std::vector<int32_t> prompt = known[dice.roll(static_cast<uint32_t>(known.size()))];
        prompt.resize(prompt.size() - dice.roll(static_cast<uint32_t>(prompt.size() + 1)) / 2);
        const int64_t more = 1 + dice.roll(70);
        for (int64_t i = 0; i < more; ++i) {
          prompt.push_back(static_cast<int32_t>(dice.roll(kFakeVocab)));
        }
        const int64_t most = options.max_positions - 1;
        if (std::ssize(prompt) > most) prompt.resize(static_cast<size_t>(most));
        if (known.size() < 8) known.push_back(prompt);
        const int32_t n_choices =
            dice.roll(4) == 0
                ? 1 + static_cast<int32_t>(dice.roll(static_cast<uint32_t>(options.max_sequences)))
                : 1;
        engine.add(std::move(prompt), n_choices, dice.roll(50), dice.roll(8) == 0,
                   dice.roll(2) == 0);
        break;
      }
      case 2:
        if (dice.roll(3) == 0) engine.cancel(any_key());
        if (dice.roll(6) == 0) {
          engine.import(known[dice.roll(static_cast<uint32_t>(known.size()))]);
        }
        break;
      case 3:
        if (dice.roll(3) == 0) engine.scheduler().preempt(any_key());
        break;
      default:
        engine.step();
    }
  }
  engine.finish();
}

}  // namespace replayssm
