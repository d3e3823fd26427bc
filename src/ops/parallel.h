// The thread pool as libreplayssm's ParallelFor.
#pragma once

#include "core/thread_pool.h"
#include "replay/types.h"

namespace replayssm {

// The pool must outlive what is returned.
inline ParallelFor parallel_of(ThreadPool& pool) {
  ParallelFor out;
  out.run = [](void* ctx, int64_t count, ParallelFor::Function function, const void* arg) {
    static_cast<ThreadPool*>(ctx)->run(count, function, arg);
  };
  out.ctx = &pool;
  out.n_workers = pool.size();
  return out;
}

}  // namespace replayssm
