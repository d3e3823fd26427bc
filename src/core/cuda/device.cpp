#include "core/cuda/device.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace replayssm {

void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // it is reported here and must not show at a later call
  fail("CUDA: ", call, ": ", cudaGetErrorString(error));
}

void check_device() {
  int device = 0, major = 0;
  check_cuda(cudaGetDevice(&device), "no device");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "device attribute");
  if (major != 9) {
    fail("the CUDA kernels are built for compute capability 9; this device has ", major);
  }
}

int64_t free_device_bytes() {
  size_t free_bytes = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total), "memory info");
  return static_cast<int64_t>(free_bytes);
}

DeviceArena::DeviceArena(int64_t bytes)
    : Arena(kAlignment, /*counts_only=*/false), capacity_(bytes) {
  void* block = nullptr;
  check_cuda(cudaMalloc(&block, static_cast<size_t>(std::max<int64_t>(bytes, 1))), "cudaMalloc");
  block_ = static_cast<char*>(block);
}

DeviceArena::~DeviceArena() { cudaFree(block_); }

void* DeviceArena::place(int64_t at, int64_t bytes) {
  REPLAYSSM_CHECK(at + bytes <= capacity_, at + bytes, " bytes of ", capacity_);
  return block_ + at;
}

Stream::Stream() {
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

Stream::~Stream() { cudaStreamDestroy(stream_); }

void Stream::wait() const { check_cuda(cudaStreamSynchronize(stream_), "wait for the stream"); }

Event::Event() {
  check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
}

Event::~Event() { cudaEventDestroy(event_); }

void Event::record(const Stream& stream) const {
  check_cuda(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
}

void Event::wait() const { check_cuda(cudaEventSynchronize(event_), "wait for an event"); }

PinnedBuffer::PinnedBuffer(int64_t bytes) {
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  check_cuda(cudaMallocHost(&data, size), "cudaMallocHost");
  data_ = static_cast<char*>(data);
  std::memset(data_, 0, size);
}

PinnedBuffer::~PinnedBuffer() { cudaFreeHost(data_); }

Graph::~Graph() {
  if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
}

void Graph::begin(const Stream& stream) {
  check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
             "begin of a capture");
}

Graph Graph::end(const Stream& stream) {
  cudaGraph_t graph = nullptr;
  check_cuda(cudaGetLastError(), "a captured launch");
  check_cuda(cudaStreamEndCapture(stream.get(), &graph), "end of a capture");
  Graph out;
  const cudaError_t error = cudaGraphInstantiate(&out.exec_, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(error, "cudaGraphInstantiate");
  check_cuda(cudaGraphUpload(out.exec_, stream.get()), "cudaGraphUpload");
  return out;
}

void Graph::launch(const Stream& stream) const {
  check_cuda(cudaGraphLaunch(exec_, stream.get()), "cudaGraphLaunch");
}

}  // namespace replayssm
