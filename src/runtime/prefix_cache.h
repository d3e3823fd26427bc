// What is known of texts: KV pages by content and state snapshots at grid points.
//
// A tree of pages: a node stands for ops::kKvPage tokens after its parent's and owns the KV page of
// these positions; texts with a common beginning share nodes. A snapshot hangs on the node of its
// last full page, with the tokens and the page that it begins, if it ends inside one. It owns a
// reference to the checkpoint slot that a fold left behind, so it costs no copy.
//
// Memory that someone else wants is given back by evict(): the snapshot with the least value goes,
// value being saved tokens a byte over the value that was last evicted (GreedyDual-Size: old ones
// sink, a hit lifts again), and with it the pages that no other snapshot needs.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ops/attention.h"
#include "runtime/ref_pool.h"

namespace replayssm {

class PrefixCache {
 public:
  // The pools must outlive it.
  PrefixCache(RefPool& slots, RefPool& pages, int64_t slot_bytes, int64_t page_bytes);
  ~PrefixCache();

  struct Hit {
    int64_t position = 0;  // of the snapshot; 0: none
    int32_t slot = -1;
    std::vector<int32_t> pages;  // of [0, position)
    int64_t matched = 0;         // leading tokens that the cache knows pages of
  };
  // The longest snapshot of at most `limit` tokens that `tokens` begin with. The caller retains
  // what it takes before anything else happens to the cache.
  Hit find(std::span<const int32_t> tokens, int64_t limit);
  // As find, and leaves no trace: values stay as they are.
  Hit peek(std::span<const int32_t> tokens, int64_t limit) const;

  // Keeps the state after `tokens`: takes references of its own to `slot` and to the pages of
  // [0, tokens.size()). Full pages whose content it already has are exchanged for its own in
  // `pages`. False if that snapshot is already there.
  bool insert(std::span<const int32_t> tokens, int32_t slot, std::span<int32_t> pages);

  struct Evicted {
    std::vector<int32_t> tokens;
    int32_t slot = -1;
    std::vector<int32_t> pages;
  };
  // Drops the least valued snapshot. `before` sees it while its memory is still its own. False if
  // the cache is empty.
  bool evict(const std::function<void(const Evicted&)>& before);

  // All snapshots, for who wants to save them.
  std::vector<Evicted> all() const;

  int64_t n_snapshots() const { return static_cast<int64_t>(entries_.size()); }
  int64_t n_pages() const { return n_pages_; }  // each once
  int64_t n_evicted() const { return n_evicted_; }
  // Pages that nobody but the cache holds, without those of `kept`: what evicting the rest of it
  // would free.
  int64_t n_sole_pages(std::span<const int32_t> kept) const;

 private:
  using PageTokens = std::array<int32_t, ops::kKvPage>;
  struct Node;
  struct Entry {
    Node* node = nullptr;
    std::vector<int32_t> tail;  // tokens past the node's, fewer than a page
    int32_t tail_page = -1;
    int32_t slot = -1;
    double value = 0;
  };
  using Entries = std::list<Entry>;
  struct Node {
    Node* parent = nullptr;
    int64_t depth = 0;  // pages from the root
    PageTokens tokens{};
    int32_t page = -1;
    std::map<PageTokens, std::unique_ptr<Node>> children;
    std::vector<Entries::iterator> entries;
  };

  static int64_t position_of(const Entry& entry);
  std::vector<int32_t> tokens_of(const Entry& entry) const;
  std::vector<int32_t> pages_of(const Node* node) const;
  Evicted view(const Entry& entry) const;
  const Entry* best(std::span<const int32_t> tokens, int64_t limit, int64_t* matched) const;
  int64_t saved_by(const Entry& entry) const;
  double value_of(const Entry& entry) const;
  void prune(Node* node);
  void retain_page(int32_t page);
  void release_page(int32_t page);

  RefPool& slots_;
  RefPool& pages_;
  int64_t slot_bytes_;
  int64_t page_bytes_;
  Node root_;
  Entries entries_;
  double floor_ = 0;                // the value of the last evicted
  std::vector<int32_t> page_refs_;  // the cache's own references to each page
  int64_t n_pages_ = 0;             // that it has any to
  int64_t n_evicted_ = 0;
};

}  // namespace replayssm
