// Device memory for the op tests: tensors with NaN guards, and a context to run on.
#pragma once

#include <functional>

#include "../../cuda/device.h"
#include "../fixture.h"
#include "ops/cuda/context_cuda.h"

namespace replayssm::ops::cuda {

using test::cuda_check;
using test::DeviceBuffer;

class Device {
 public:
  explicit Device(Mode mode = Mode::kFast)
      : workspace_(CudaContext::kWorkspaceBytes),
        context_(stream_.get(), workspace_.data(), mode) {}
  const CudaContext& context() const { return context_; }
  void wait() const { cuda_check(cudaStreamSynchronize(context_.stream()), "stream"); }

 private:
  class Stream {
   public:
    // One that waits for the default stream, on which buffers are filled.
    Stream() { cuda_check(cudaStreamCreate(&stream_), "stream"); }
    ~Stream() { cudaStreamDestroy(stream_); }
    cudaStream_t get() const { return stream_; }

   private:
    cudaStream_t stream_ = nullptr;
  };
  Stream stream_;
  DeviceBuffer workspace_;
  CudaContext context_;
};

// How rows lie in memory: in 16-byte pieces, or at odd places.
enum class Place { kPieces, kOdd };
constexpr Place kPlaces[] = {Place::kPieces, Place::kOdd};

// A copy of a host tensor on the device; NaN before, after and in the gaps.
class DeviceTensor {
 public:
  DeviceTensor(Tensor& host, Place place)
      : dtype_(host.dtype()),
        rows_(host.rows()),
        cols_(host.cols()),
        stride_(place == Place::kOdd ? cols_ + 3 : (cols_ + 15) / 8 * 8),
        guard_(place == Place::kOdd ? 37 : 64),
        bytes_((2 * guard_ + rows_ * stride_) * dtype_bytes(dtype_)),
        buffer_(bytes_) {
    std::vector<unsigned char> all(static_cast<size_t>(bytes_), 0xff);
    for (int64_t r = 0; r < rows_; ++r) {
      std::memcpy(all.data() + at(r), host.matrix().at(r), row_bytes());
    }
    buffer_.upload(all);
  }

  Matrix matrix() const {
    return {static_cast<char*>(buffer_.data()) + at(0), dtype_, rows_, cols_, stride_};
  }
  Heads heads(int64_t n_heads) const {
    const int64_t dim = cols_ / n_heads;
    return {matrix().data, dtype_, rows_, n_heads, dim, stride_, dim};
  }

  // What it holds now; fails if the op wrote beside it.
  Tensor get() const {
    cuda_check(cudaDeviceSynchronize(), "device");
    const auto all = buffer_.download<unsigned char>(bytes_);
    Tensor host(dtype_, rows_, cols_);
    std::vector<bool> used(static_cast<size_t>(bytes_));
    for (int64_t r = 0; r < rows_; ++r) {
      std::memcpy(host.matrix().at(r), all.data() + at(r), row_bytes());
      for (size_t i = 0; i < row_bytes(); ++i) used[static_cast<size_t>(at(r)) + i] = true;
    }
    bool intact = true;
    for (size_t i = 0; i < all.size(); ++i) intact = intact && (used[i] || all[i] == 0xff);
    EXPECT_TRUE(intact);
    return host;
  }

 private:
  int64_t at(int64_t row) const { return (guard_ + row * stride_) * dtype_bytes(dtype_); }
  size_t row_bytes() const { return static_cast<size_t>(cols_ * dtype_bytes(dtype_)); }

  DType dtype_;
  int64_t rows_, cols_, stride_, guard_, bytes_;
  DeviceBuffer buffer_;
};

// A tensor that the op is to fill.
inline DeviceTensor output(DType dtype, int64_t rows, int64_t cols, Place place) {
  Tensor empty(dtype, rows, cols);
  return DeviceTensor(empty, place);
}

inline void expect_same(Tensor& a, Tensor& b) {
  for (int64_t r = 0; r < a.rows(); ++r) EXPECT_TRUE(same_row(a, r, b, r)) << "row " << r;
}

}  // namespace replayssm::ops::cuda
