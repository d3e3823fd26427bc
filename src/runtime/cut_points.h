// Where prompts are cut for snapshots: a pure function of the tokens. Cut points are
//   the ends of messages (after an id of message_end_ids), powers of two, multiples of `interval`,
// each rounded down to the grid; 0 is none.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace replayssm {

struct CutRule {
  int32_t grid = 16;     // B
  int64_t interval = 0;  // 0: none
  std::vector<int32_t> message_end_ids;
};

// The first cut point in (from, to]; tokens beyond `to` may decide it.
std::optional<int64_t> next_cut(const CutRule& rule, std::span<const int32_t> tokens, int64_t from,
                                int64_t to);

}  // namespace replayssm
