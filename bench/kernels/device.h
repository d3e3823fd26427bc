// The device as bench_kernels uses it: one arena for all of its memory, and timing by graph replay.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "results.h"

namespace replayssm::bench {

void check_cuda(cudaError_t error, const char* what);

// What a cell needs and the card does not have.
class OutOfMemory : public Error {
  using Error::Error;
};

// Nearly all of the card's free memory, given out from the front.
class Arena {
 public:
  Arena();
  ~Arena() { cudaFree(data_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void reset() { used_ = 0; }
  // 256-byte aligned; throws OutOfMemory.
  void* take(int64_t bytes);
  // Filled with copies of the pattern, the last one cut short.
  template <typename T>
  T* take(int64_t count, const std::vector<T>& pattern) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    void* data = take(bytes);
    fill(data, bytes, pattern.data(), static_cast<int64_t>(pattern.size() * sizeof(T)));
    return static_cast<T*>(data);
  }

 private:
  static void fill(void* data, int64_t bytes, const void* pattern, int64_t pattern_bytes);

  char* data_ = nullptr;
  int64_t capacity_ = 0, used_ = 0;
};

// Captures launch(0) .. launch(n - 1) in a graph and replays it; the median replay's mean.
double time_us(int n, const std::function<void(int step, cudaStream_t stream)>& launch);

Machine describe_machine(Arena& arena);

// Reads `bytes` and keeps nothing (bandwidth.cu).
void launch_read(const void* data, int64_t bytes, void* sink, cudaStream_t stream);

}  // namespace replayssm::bench
