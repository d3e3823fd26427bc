#include "model/tokenizer/bpe.h"

#include <bit>
#include <limits>
#include <queue>
#include <tuple>

#include "core/error.h"

namespace replayssm::model {
namespace {

constexpr size_t kShortWord = 48;  // up to here a scan for the best pair beats a heap
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
constexpr uint64_t kEmpty = ~uint64_t{0};  // no pair: ids are not negative

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// The top bits of the product (Fibonacci hashing).
size_t home_slot(uint64_t pair, int shift) { return (pair * 0x9E3779B97F4A7C15ULL) >> shift; }

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges,
         int32_t unknown, bool fuse_unknown)
    : byte_ids_(byte_ids), unknown_(unknown), fuse_unknown_(fuse_unknown) {
  const size_t n_slots = std::bit_ceil(merges.size() * 2 + 2);
  slots_.assign(n_slots, {kEmpty, kNoRank, kNoToken});
  shift_ = 64 - std::countr_zero(n_slots);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_key(merges[rank].left, merges[rank].right);
    size_t i = home_slot(pair, shift_);
    while (slots_[i].pair != kEmpty && slots_[i].pair != pair) i = (i + 1) & (n_slots - 1);
    slots_[i] = {pair, static_cast<int32_t>(rank), merges[rank].merged};
  }
}

const Bpe::Slot* Bpe::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  for (size_t i = home_slot(pair, shift_);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].pair == pair) return &slots_[i];
    if (slots_[i].pair == kEmpty) return nullptr;
  }
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& out) const {
  if (word.size() <= kShortWord) {
    encode_short(word, out);
  } else {
    encode_long(word, out);
  }
}

size_t Bpe::byte_tokens(std::string_view word, int32_t* ids) const {
  size_t n = 0;
  bool after_unknown = false;
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    const bool known = id != kNoToken;
    if (known) {
      ids[n++] = id;
    } else if (unknown_ != kNoToken && !(after_unknown && fuse_unknown_)) {
      ids[n++] = unknown_;
    }
    after_unknown = !known;
  }
  return n;
}

void Bpe::encode_short(std::string_view word, std::vector<int32_t>& out) const {
  // ranks[i] and merged[i] tell of the pair (ids[i], ids[i + 1]).
  int32_t ids[kShortWord];
  int32_t ranks[kShortWord];
  int32_t merged[kShortWord];
  size_t n = byte_tokens(word, ids);
  const auto look_up = [&](size_t i) {
    const Slot* slot = find(ids[i], ids[i + 1]);
    ranks[i] = slot ? slot->rank : kNoRank;
    merged[i] = slot ? slot->merged : kNoToken;
  };
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (true) {
    size_t best = 0;
    int32_t best_rank = kNoRank;
    for (size_t i = 0; i + 1 < n; ++i) {
      if (ranks[i] < best_rank) {
        best_rank = ranks[i];
        best = i;
      }
    }
    if (best_rank == kNoRank) break;
    ids[best] = merged[best];
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      ids[i] = ids[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    if (best + 1 < n) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  out.insert(out.end(), ids, ids + n);
}

void Bpe::encode_long(std::string_view word, std::vector<int32_t>& out) const {
  REPLAYSSM_CHECK(word.size() < static_cast<size_t>(kNoRank), word.size());
  // A linked list of symbols, and a heap of candidate merges.
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;
  };
  struct Candidate {
    int32_t rank;
    int32_t place;
    int32_t left;
    int32_t right;
    bool operator<(const Candidate& other) const {  // std::priority_queue has the greatest on top
      return std::tie(rank, place) > std::tie(other.rank, other.place);
    }
  };
  constexpr int32_t kEnd = -1;
  std::vector<int32_t> ids(word.size());
  const auto n = static_cast<int32_t>(byte_tokens(word, ids.data()));
  if (n == 0) return;
  std::vector<Symbol> symbols(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) {
    symbols[i] = {ids[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : kEnd};
  }
  std::vector<Candidate> candidates;
  candidates.reserve(word.size());
  const auto candidate = [&](int32_t place, auto&& take) {
    if (place == kEnd || symbols[place].next == kEnd) return;
    const int32_t left = symbols[place].id;
    const int32_t right = symbols[symbols[place].next].id;
    if (const Slot* slot = find(left, right)) take(Candidate{slot->rank, place, left, right});
  };
  for (int32_t i = 0; i < n; ++i) {
    candidate(i, [&](const Candidate& c) { candidates.push_back(c); });
  }
  std::priority_queue<Candidate> heap({}, std::move(candidates));
  const auto push = [&](const Candidate& c) { heap.push(c); };
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    Symbol& left = symbols[top.place];
    // A merge made since may have changed either symbol; a swallowed one has no token.
    if (left.id != top.left || left.next == kEnd || symbols[left.next].id != top.right) continue;
    Symbol& right = symbols[left.next];
    left.id = find(top.left, top.right)->merged;
    right.id = kNoToken;
    left.next = right.next;
    if (left.next != kEnd) symbols[left.next].previous = top.place;
    candidate(top.place, push);
    candidate(left.previous, push);
  }
  for (int32_t i = 0; i != kEnd; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace replayssm::model
