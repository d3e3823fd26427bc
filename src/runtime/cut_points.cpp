#include "runtime/cut_points.h"

#include <algorithm>
#include <bit>

namespace replayssm {

std::optional<int64_t> next_cut(const CutRule& rule, std::span<const int32_t> tokens, int64_t from,
                                int64_t to) {
  const int64_t grid = rule.grid;
  int64_t first = to + 1;
  const auto offer = [&](int64_t position) {
    const int64_t cut = position / grid * grid;
    if (cut > from) first = std::min(first, cut);
  };
  // The first position past `from` that rounds to a grid point past it.
  const int64_t least = (from / grid + 1) * grid;
  offer(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(least))));
  if (rule.interval > 0) offer((least + rule.interval - 1) / rule.interval * rule.interval);
  if (!rule.message_end_ids.empty()) {
    const int64_t last =
        std::min(std::min(first, to + 1) + grid - 1, static_cast<int64_t>(tokens.size()));
    for (int64_t end = least; end <= last; ++end) {
      const int32_t id = tokens[static_cast<size_t>(end - 1)];
      if (std::ranges::find(rule.message_end_ids, id) == rule.message_end_ids.end()) continue;
      offer(end);
      break;
    }
  }
  if (first > to) return std::nullopt;
  return first;
}

}  // namespace replayssm
