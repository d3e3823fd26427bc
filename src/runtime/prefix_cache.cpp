#include "runtime/prefix_cache.h"

#include <algorithm>

namespace replayssm {
namespace {

constexpr int64_t kPage = ops::kKvPage;

int64_t common(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<int64_t>(n), b.begin()).first - a.begin();
}

}  // namespace

PrefixCache::PrefixCache(RefPool& slots, RefPool& pages, int64_t slot_bytes, int64_t page_bytes)
    : slots_(slots),
      pages_(pages),
      slot_bytes_(slot_bytes),
      page_bytes_(page_bytes),
      page_refs_(static_cast<size_t>(pages.size()), 0) {}

PrefixCache::~PrefixCache() {
  while (evict(nullptr)) continue;
}

int64_t PrefixCache::position_of(const Entry& entry) {
  return entry.node->depth * kPage + static_cast<int64_t>(entry.tail.size());
}

std::vector<int32_t> PrefixCache::pages_of(const Node* node) const {
  std::vector<int32_t> pages(static_cast<size_t>(node->depth));
  for (; node->parent != nullptr; node = node->parent) {
    pages[static_cast<size_t>(node->depth - 1)] = node->page;
  }
  return pages;
}

std::vector<int32_t> PrefixCache::tokens_of(const Entry& entry) const {
  std::vector<int32_t> tokens(static_cast<size_t>(position_of(entry)));
  for (const Node* node = entry.node; node->parent != nullptr; node = node->parent) {
    std::ranges::copy(node->tokens, tokens.begin() + (node->depth - 1) * kPage);
  }
  std::ranges::copy(entry.tail, tokens.end() - std::ssize(entry.tail));
  return tokens;
}

PrefixCache::Evicted PrefixCache::view(const Entry& entry) const {
  Evicted out{tokens_of(entry), entry.slot, pages_of(entry.node)};
  if (entry.tail_page >= 0) out.pages.push_back(entry.tail_page);
  return out;
}

std::vector<PrefixCache::Evicted> PrefixCache::all() const {
  std::vector<Evicted> out;
  for (const Entry& entry : entries_) out.push_back(view(entry));
  return out;
}

const PrefixCache::Entry* PrefixCache::best(std::span<const int32_t> tokens, int64_t limit,
                                            int64_t* matched) const {
  const Entry* found = nullptr;
  const Node* node = &root_;
  for (;;) {
    const int64_t at = node->depth * kPage;
    const auto rest = tokens.subspan(static_cast<size_t>(at));
    for (const auto& entry : node->entries) {
      if (position_of(*entry) > limit) continue;
      if (common(entry->tail, rest) < std::ssize(entry->tail)) continue;
      if (found == nullptr || position_of(*entry) > position_of(*found)) found = &*entry;
    }
    const Node* next = nullptr;
    if (std::ssize(rest) >= kPage) {
      PageTokens key;
      std::copy_n(rest.begin(), kPage, key.begin());
      const auto child = node->children.find(key);
      if (child != node->children.end()) next = child->second.get();
    }
    if (next == nullptr) {
      int64_t more = 0;
      for (const auto& child : node->children) more = std::max(more, common(child.first, rest));
      for (const auto& entry : node->entries) more = std::max(more, common(entry->tail, rest));
      *matched = at + more;
      return found;
    }
    node = next;
  }
}

PrefixCache::Hit PrefixCache::peek(std::span<const int32_t> tokens, int64_t limit) const {
  Hit hit;
  const Entry* entry = best(tokens, limit, &hit.matched);
  if (entry == nullptr) return hit;
  Evicted found = view(*entry);
  hit.position = position_of(*entry);
  hit.slot = found.slot;
  hit.pages = std::move(found.pages);
  return hit;
}

PrefixCache::Hit PrefixCache::find(std::span<const int32_t> tokens, int64_t limit) {
  int64_t matched = 0;
  if (const Entry* entry = best(tokens, limit, &matched)) {
    const_cast<Entry*>(entry)->value = floor_ + value_of(*entry);
  }
  return peek(tokens, limit);
}

// Tokens that would have to be computed again without this snapshot.
int64_t PrefixCache::saved_by(const Entry& entry) const {
  const int64_t position = position_of(entry);
  // What follows the node in the entry's text, as far as a tail there may reach.
  std::span<const int32_t> rest = entry.tail;
  for (const Node* node = entry.node; node != nullptr; rest = node->tokens, node = node->parent) {
    int64_t before = 0;
    for (const auto& other : node->entries) {
      if (position_of(*other) >= position) continue;
      if (common(other->tail, rest) < std::ssize(other->tail)) continue;
      before = std::max(before, position_of(*other));
    }
    if (before > 0) return position - before;
  }
  return position;
}

double PrefixCache::value_of(const Entry& entry) const {
  const double saved = static_cast<double>(saved_by(entry));
  return saved /
         (static_cast<double>(slot_bytes_) + saved / kPage * static_cast<double>(page_bytes_) + 1);
}

bool PrefixCache::insert(std::span<const int32_t> tokens, int32_t slot, std::span<int32_t> pages) {
  const int64_t size = std::ssize(tokens);
  REPLAYSSM_CHECK(size > 0 && std::ssize(pages) >= (size + kPage - 1) / kPage, pages.size(),
                  " pages for ", size, " tokens");
  Node* node = &root_;
  for (int64_t i = 0; i < size / kPage; ++i) {
    PageTokens key;
    std::copy_n(tokens.begin() + i * kPage, kPage, key.begin());
    auto& child = node->children[key];
    int32_t& page = pages[static_cast<size_t>(i)];
    if (child == nullptr) {
      child = std::make_unique<Node>();
      child->parent = node;
      child->depth = node->depth + 1;
      child->tokens = key;
      child->page = page;
      retain_page(page);
    } else if (child->page != page) {
      pages_.retain(child->page);
      pages_.release(page);
      page = child->page;
    }
    node = child.get();
  }
  const auto tail = tokens.subspan(static_cast<size_t>(size / kPage * kPage));
  for (const auto& entry : node->entries) {
    if (std::ranges::equal(entry->tail, tail)) return false;
  }
  Entry entry;
  entry.node = node;
  entry.tail.assign(tail.begin(), tail.end());
  entry.slot = slot;
  slots_.retain(slot);
  if (!tail.empty()) {
    entry.tail_page = pages[static_cast<size_t>(size / kPage)];
    retain_page(entry.tail_page);
  }
  entry.value = floor_ + value_of(entry);
  entries_.push_back(std::move(entry));
  node->entries.push_back(std::prev(entries_.end()));
  return true;
}

// Frees the nodes up from `node` that no snapshot needs.
void PrefixCache::prune(Node* node) {
  while (node->parent != nullptr && node->children.empty() && node->entries.empty()) {
    Node* const parent = node->parent;
    release_page(node->page);
    parent->children.erase(PageTokens(node->tokens));
    node = parent;
  }
}

bool PrefixCache::evict(const std::function<void(const Evicted&)>& before) {
  const auto least = std::ranges::min_element(entries_, {}, &Entry::value);
  if (least == entries_.end()) return false;
  if (before) before(view(*least));
  floor_ = least->value;
  Node* const node = least->node;
  slots_.release(least->slot);
  if (least->tail_page >= 0) release_page(least->tail_page);
  std::erase(node->entries, least);
  entries_.erase(least);
  prune(node);
  ++n_evicted_;
  return true;
}

// A page that a text has gone on to fill may be one snapshot's beginning and another's whole.
void PrefixCache::retain_page(int32_t page) {
  pages_.retain(page);
  if (page_refs_[static_cast<size_t>(page)]++ == 0) ++n_pages_;
}

void PrefixCache::release_page(int32_t page) {
  if (--page_refs_[static_cast<size_t>(page)] == 0) --n_pages_;
  pages_.release(page);
}

int64_t PrefixCache::n_sole_pages(std::span<const int32_t> kept) const {
  int64_t n = 0;
  const auto sole = [&](int32_t page) {
    const int32_t own = page_refs_[static_cast<size_t>(page)];
    return own > 0 && own == pages_.refs(page);
  };
  for (int32_t page = 0; page < pages_.size(); ++page) n += sole(page) ? 1 : 0;
  return n - std::ranges::count_if(kept, sole);
}

}  // namespace replayssm
