#include "core/thread_pool.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace replayssm {
namespace {
constexpr int kSpins = 20000;
constexpr uint64_t kOpen = uint64_t{1} << 16;
constexpr uint64_t kInside = kOpen - 1;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}
}  // namespace

ThreadPool::ThreadPool(int n_threads) {
  if (n_threads <= 0)
    n_threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  n_threads_ = n_threads;
  for (int i = 1; i < n_threads_; ++i) threads_.emplace_back([this, i] { worker_loop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::drain(int worker) {
  for (;;) {
    const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= count_) return;
    function_(ctx_, index, worker);
  }
}

void ThreadPool::worker_loop(int worker) {
  uint32_t seen = 0;
  for (;;) {
    for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) pause();
    generation_.wait(seen);
    seen = generation_.load();
    if (stop_.load()) return;
    uint64_t job = job_.load();
    while ((job >> 32) == seen && (job & kOpen) != 0) {
      if (!job_.compare_exchange_weak(job, job + 1)) continue;
      drain(worker);
      job_.fetch_sub(1);
      break;
    }
  }
}

void ThreadPool::run(int64_t count, Function function, const void* ctx) {
  if (count <= 0) return;
  if (count == 1 || n_threads_ == 1) {
    for (int64_t i = 0; i < count; ++i) function(ctx, i, 0);
    return;
  }
  function_ = function;
  ctx_ = ctx;
  count_ = count;
  next_.store(0);
  const uint32_t generation = generation_.load() + 1;
  job_.store(uint64_t{generation} << 32 | kOpen);
  generation_.store(generation);
  generation_.notify_all();
  drain(0);
  job_.fetch_and(~kOpen);
  for (int i = 0; (job_.load() & kInside) != 0; ++i) {
    if (i < kSpins) {
      pause();
    } else {
      std::this_thread::yield();  // a worker lost its core in the middle of an index
    }
  }
}

}  // namespace replayssm
