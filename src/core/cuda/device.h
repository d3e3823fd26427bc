// The card as the engine uses it: checked calls, one block of memory given out by purpose, a
// stream, and pinned host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "core/arena.h"

namespace replayssm {

// Throws Error that names the call.
void check_cuda(cudaError_t error, const char* call);

// Throws Error if the current device cannot run the kernels.
void check_device();
int64_t free_device_bytes();

// One block of the device's memory, given out from its front.
class DeviceArena final : public Arena {
 public:
  static constexpr int64_t kAlignment = 256;

  explicit DeviceArena(int64_t bytes);
  ~DeviceArena() override;

 private:
  // Beyond the block is a programmer's mistake: count first.
  void* place(int64_t at, int64_t bytes) override;

  char* block_ = nullptr;
  int64_t capacity_ = 0;
};

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void wait() const;

 private:
  cudaStream_t stream_ = nullptr;
};

// A point in a stream.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream) const;
  void wait() const;

 private:
  cudaEvent_t event_ = nullptr;
};

// Page-locked host memory, zeroed.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(int64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
};

// A captured sequence of work, instantiated and on the device: a launch allocates nothing.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }

  // Captures what `work` launches on the stream.
  template <typename Work>
  static Graph capture(const Stream& stream, const Work& work) {
    begin(stream);
    work();
    return end(stream);
  }
  void launch(const Stream& stream) const;

 private:
  static void begin(const Stream& stream);
  static Graph end(const Stream& stream);

  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace replayssm
