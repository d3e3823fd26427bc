#include "runtime/cuda/step_shapes.h"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <set>

#include "ops/attention.h"

namespace replayssm {
namespace {

constexpr int32_t kShortWindow = 4, kLongWindow = 16;
constexpr int64_t kMinPages = 256;  // 4,096 positions
constexpr int64_t kPagesFactor = 8;

// The least of 1, 2, 3, 4, 6, 8, 12, ... that is no less than n.
int64_t rounded(int64_t n) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
  return power >= 4 && power / 4 * 3 >= n ? power / 4 * 3 : power;
}

}  // namespace

PassShape step_shape(const PassShape& needs, const ForwardLimits& limits, int32_t max_window) {
  PassShape out;
  out.n_step = static_cast<int32_t>(std::min(rounded(needs.n_step), limits.max_rows));
  out.single = needs.single;
  out.longest = needs.single                    ? 1
                : needs.longest <= kShortWindow ? std::min(kShortWindow, max_window)
                                                : std::min(kLongWindow, max_window);
  const int64_t most =
      std::min({int64_t{out.n_step} * out.longest, limits.max_tokens, limits.max_logits});
  const int64_t least = needs.single ? most : (most + 3) / 4;
  out.n_tokens = out.n_logits = std::min(rounded(std::max(needs.n_tokens, least)), most);
  out.n_pages = kMinPages;
  while (out.n_pages < needs.n_pages) out.n_pages *= kPagesFactor;
  out.n_pages = std::min(out.n_pages, ops::pages_for(limits.max_positions));
  return out;
}

std::vector<PassShape> step_shapes(const ForwardLimits& limits, int32_t max_window) {
  std::set<PassShape> out;
  PassShape needs;
  for (needs.n_pages = 1; needs.n_pages <= ops::pages_for(limits.max_positions);) {
    int64_t n_pages = 0;
    for (int64_t rows = 1; rows <= limits.max_rows;) {
      needs.n_step = static_cast<int32_t>(rows);
      for (const int32_t window : {1, kShortWindow, kLongWindow}) {
        if (window > 1 && max_window == 1) continue;
        needs.longest = std::min(window, max_window);
        needs.single = window == 1;
        for (needs.n_tokens = 1;;) {
          const PassShape shape = step_shape(needs, limits, max_window);
          rows = shape.n_step;
          n_pages = shape.n_pages;
          if (!out.insert(shape).second) break;
          needs.n_tokens = shape.n_tokens + 1;
        }
      }
      ++rows;
    }
    needs.n_pages = n_pages + 1;
  }
  return {out.begin(), out.end()};
}

}  // namespace replayssm
