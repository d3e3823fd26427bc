// A fork-join pool: workers spin for a short while, then sleep on an atomic wait. A fork-join costs
// well under a microsecond, so that even a small op can be split. The caller works too and never
// waits for a worker that has not begun: where the cores are taken by others, it does it all
// itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace replayssm {

class ThreadPool {
 public:
  // n_threads counts the calling thread; 0 takes one per hardware thread.
  explicit ThreadPool(int n_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }

  // Calls body(index, worker) once for each index in [0, count), worker in [0, size()). Returns
  // when all are done. Indices are handed out dynamically: results must not depend on which worker
  // ran what. Not reentrant; one thread at a time may call it. body must not throw.
  template <typename Body>
  void parallel_for(int64_t count, const Body& body) {
    run(
        count,
        [](const void* ctx, int64_t index, int worker) {
          (*static_cast<const Body*>(ctx))(index, worker);
        },
        &body);
  }

  using Function = void (*)(const void* ctx, int64_t index, int worker);
  void run(int64_t count, Function function, const void* ctx);

 private:
  void worker_loop(int worker);
  void drain(int worker);

  int n_threads_;
  std::vector<std::thread> threads_;
  std::atomic<uint32_t> generation_{0};  // of the latest job; what workers wait on
  // The latest job: its generation << 32 | open << 16 | workers inside. No worker enters a closed
  // one.
  std::atomic<uint64_t> job_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<bool> stop_{false};
  int64_t count_ = 0;
  Function function_ = nullptr;
  const void* ctx_ = nullptr;
};

}  // namespace replayssm
