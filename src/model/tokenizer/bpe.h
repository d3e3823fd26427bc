// Byte-pair merging of one pre-token.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace replayssm::model {

// Tokens `left` and `right`, side by side, become `merged`. Its place in the list is its rank.
struct Merge {
  int32_t left;
  int32_t right;
  int32_t merged;
};

class Bpe {
 public:
  static constexpr int32_t kNoToken = -1;

  // byte_ids: the token of each byte. Bytes of kNoToken become `unknown`, with `fuse_unknown` one
  // for a run of them, or are dropped where that is kNoToken. Of two equal pairs in `merges` the
  // later one counts.
  Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges,
      int32_t unknown = kNoToken, bool fuse_unknown = false);

  // Appends the tokens of `word`: from its bytes, always the pair of the lowest rank is merged, and
  // of equal ranks the leftmost. Linear in memory, n log n in time.
  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  struct Slot {
    uint64_t pair;
    int32_t rank;
    int32_t merged;
  };

  // The merge of the two tokens, or null.
  const Slot* find(int32_t left, int32_t right) const;
  // The tokens of the bytes into `ids`, which has room for one a byte; their number.
  size_t byte_tokens(std::string_view word, int32_t* ids) const;
  void encode_short(std::string_view word, std::vector<int32_t>& out) const;
  void encode_long(std::string_view word, std::vector<int32_t>& out) const;

  std::array<int32_t, 256> byte_ids_;
  int32_t unknown_;
  bool fuse_unknown_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  int shift_;
};

}  // namespace replayssm::model
