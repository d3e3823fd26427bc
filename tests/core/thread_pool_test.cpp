#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace replayssm {
namespace {

// Pools larger than the machine too: a worker may come late, or not at all.
TEST(ThreadPool, RunsEachIndexOnce) {
  for (int n_threads : {1, 2, 3, 8}) {
    ThreadPool pool(n_threads);
    for (int round = 0; round < 2000; ++round) {
      const int64_t count = round % 67;
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      std::atomic<bool> worker_in_range{true};
      pool.parallel_for(count, [&](int64_t i, int worker) {
        hits[static_cast<size_t>(i)].fetch_add(1);
        if (worker < 0 || worker >= n_threads) worker_in_range = false;
      });
      for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1) << n_threads << " threads, " << count;
      ASSERT_TRUE(worker_in_range);
    }
  }
}

// Each worker index belongs to one thread at a time, so scratch by worker index is safe.
TEST(ThreadPool, WorkerIndexIsExclusive) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> shared{false};
  for (int round = 0; round < 500; ++round) {
    pool.parallel_for(64, [&](int64_t, int worker) {
      if (inside[static_cast<size_t>(worker)].fetch_add(1) != 0) shared = true;
      inside[static_cast<size_t>(worker)].fetch_sub(1);
    });
  }
  EXPECT_FALSE(shared);
}

// What the bodies wrote is visible to the caller afterwards.
TEST(ThreadPool, ResultsAreVisible) {
  ThreadPool pool(2);
  std::vector<int64_t> values(1000);
  for (int64_t round = 1; round <= 1000; ++round) {
    pool.parallel_for(1000, [&](int64_t i, int) { values[static_cast<size_t>(i)] = i * round; });
    int64_t sum = 0;
    for (int64_t v : values) sum += v;
    ASSERT_EQ(sum, 499500 * round);
  }
}

}  // namespace
}  // namespace replayssm
