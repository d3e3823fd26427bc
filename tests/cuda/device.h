// Device buffers for tests and benches of the CUDA kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace replayssm::test {

inline void cuda_check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// Device memory filled with 0xff: NaN in every float type.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t bytes) : bytes_(bytes < 16 ? 16 : bytes) {
    cuda_check(cudaMalloc(&data_, static_cast<size_t>(bytes_)), "cudaMalloc");
    cuda_check(cudaMemset(data_, 0xff, static_cast<size_t>(bytes_)), "cudaMemset");
  }
  template <typename T>
  explicit DeviceBuffer(const std::vector<T>& host)
      : DeviceBuffer(static_cast<int64_t>(host.size() * sizeof(T))) {
    upload(host);
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  template <typename T>
  void upload(const std::vector<T>& host) {
    cuda_check(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
               "upload");
  }
  template <typename T>
  std::vector<T> download(int64_t count, int64_t offset_bytes = 0) const {
    std::vector<T> host(static_cast<size_t>(count));
    cuda_check(cudaMemcpy(host.data(), static_cast<const char*>(data_) + offset_bytes,
                          host.size() * sizeof(T), cudaMemcpyDeviceToHost),
               "download");
    return host;
  }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_;
};

}  // namespace replayssm::test
