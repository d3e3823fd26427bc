// Splits of rows over the threads. Whatever is split, a row's arithmetic stays the same.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/context.h"

namespace replayssm::ops {

// Below this many elements (or products) of work one thread is done before a second has started.
constexpr int64_t kForkElements = int64_t{1} << 14;

// body(first, last, worker) over chunks of [0, count), each of at least half kForkElements of work.
template <typename Body>
void parallel_chunks(const Context& context, int64_t count, int64_t work_each, const Body& body) {
  if (count <= 0) return;
  const int64_t workers = context.pool().size();
  if (workers == 1 || count * work_each < kForkElements) return body(0, count, 0);
  const int64_t least = std::max<int64_t>(1, kForkElements / 2 / std::max<int64_t>(1, work_each));
  const int64_t chunks = std::min((count + least - 1) / least, 4 * workers);
  context.pool().parallel_for(chunks, [&](int64_t index, int worker) {
    body(count * index / chunks, count * (index + 1) / chunks, worker);
  });
}

}  // namespace replayssm::ops
