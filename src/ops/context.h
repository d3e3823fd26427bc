// What every op runs on: threads, an instruction set, and scratch allocated once.
//
// The invariant of all ops: a row's result is a pure function of that row's inputs, to the bit. It
// does not depend on the other rows, on how many there are, or on the number of threads. Bits are
// promised within one (isa, bf16_dot) pair. Ops never allocate. Bad shapes are a programmer's
// mistake (REPLAYSSM_CHECK).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/memory.h"
#include "core/thread_pool.h"
#include "replay/kernels.h"

namespace replayssm::ops {

// True if this CPU multiplies bf16 pairs natively (AVX512_BF16).
bool bf16_dot_supported();

class Context {
 public:
  // The pool must outlive the context. One thread at a time may run ops on a context.
  explicit Context(ThreadPool& pool);  // the best that this machine has
  Context(ThreadPool& pool, Isa isa, bool bf16_dot);

  ThreadPool& pool() const { return *pool_; }
  Isa isa() const { return isa_; }
  bool bf16_dot() const { return bf16_dot_; }

  static constexpr size_t kScratchBytes = size_t{1} << 20;
  // kScratchBytes, 1 MiB aligned; `worker` in [0, pool().size()). Contents last for one op.
  void* scratch(int worker) const { return base_ + static_cast<size_t>(worker) * kScratchBytes; }
  static constexpr size_t kSharedScratchBytes = size_t{4} << 20;
  void* shared_scratch() const { return scratch(pool_->size()); }

 private:
  ThreadPool* pool_;
  Isa isa_;
  bool bf16_dot_;
  Buffer scratch_;
  char* base_;
};

}  // namespace replayssm::ops
