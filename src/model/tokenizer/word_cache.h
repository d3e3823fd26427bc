// Remembers the tokens of short words. One thread's own; forgets when two words share a slot.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace replayssm::model {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 22;
  static constexpr size_t kMaxTokens = 10;

  WordCache() : entries_(kEntries) {}

  // The tokens of `word`, or none if they are not here. word.size() <= kMaxBytes.
  std::span<const int32_t> find(std::string_view word) const {
    const Entry& entry = entries_[slot(word)];
    if (entry.n_bytes != word.size() || std::memcmp(entry.bytes, word.data(), word.size()) != 0) {
      return {};
    }
    return {entry.ids, entry.n_ids};
  }

  // word.size() <= kMaxBytes, ids.size() <= kMaxTokens.
  void put(std::string_view word, std::span<const int32_t> ids) {
    Entry& entry = entries_[slot(word)];
    entry.n_bytes = static_cast<uint8_t>(word.size());
    entry.n_ids = static_cast<uint8_t>(ids.size());
    std::memcpy(entry.bytes, word.data(), word.size());
    std::memcpy(entry.ids, ids.data(), ids.size_bytes());
  }

 private:
  struct alignas(64) Entry {
    uint8_t n_bytes = 0;
    uint8_t n_ids = 0;
    char bytes[kMaxBytes];
    int32_t ids[kMaxTokens];
  };
  static_assert(sizeof(Entry) == 64);
  static constexpr size_t kEntries = 8192;

  static size_t slot(std::string_view word) {
    uint64_t hash = 0xCBF29CE484222325ULL;
    for (const char c : word) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
    return (hash ^ hash >> 32) % kEntries;
  }

  std::vector<Entry> entries_;
};

}  // namespace replayssm::model
