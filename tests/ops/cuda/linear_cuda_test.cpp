#include "ops/cuda/linear_cuda.h"

#include "device_fixture.h"
#include "ops/ref/ref.h"

namespace replayssm::ops::cuda {
namespace {

// A weight on the device, rows packed.
class DeviceWeight {
 public:
  explicit DeviceWeight(Tensor& w) : buffer_(packed(w)) {
    linear_.weight = buffer_.data();
    linear_.type = w.dtype() == DType::kF32 ? WeightType::kF32 : WeightType::kBF16;
    linear_.n_out = w.rows();
    linear_.n_in = w.cols();
  }
  const LinearCuda& linear() const { return linear_; }

 private:
  static std::vector<unsigned char> packed(Tensor& w) {
    const auto row_bytes = static_cast<size_t>(w.cols() * dtype_bytes(w.dtype()));
    std::vector<unsigned char> out(row_bytes * static_cast<size_t>(w.rows()));
    for (int64_t r = 0; r < w.rows(); ++r) {
      std::memcpy(out.data() + static_cast<size_t>(r) * row_bytes, w.matrix().at(r), row_bytes);
    }
    return out;
  }
  DeviceBuffer buffer_;
  LinearCuda linear_;
};

struct Shape {
  int64_t rows, n_in, n_out;
};

TEST(LinearCuda, MatchesReference) {
  for (const Mode mode : {Mode::kFast, Mode::kExact}) {
    const Device device(mode);
    for (const Place place : kPlaces) {
      for (const Shape& shape :
           {Shape{1, 1, 1}, Shape{1, 7, 63}, Shape{2, 64, 64}, Shape{3, 72, 40}, Shape{4, 2056, 16},
            Shape{5, 33, 130}, Shape{7, 129, 65}, Shape{13, 256, 200}, Shape{64, 304, 64},
            Shape{33, 1000, 72}, Shape{1, 520, 700}, Shape{1, 9216, 270}}) {
        for (const DType wt : kActivations) {
          for (const DType xt : kActivations) {
            Tensor w(wt, shape.n_out, shape.n_in), x(xt, shape.rows, shape.n_in);
            w.fill(1);
            x.fill(2);
            const std::vector<double> truth = ref::linear(x.matrix(), w.matrix(), nullptr);
            const DeviceWeight dw(w);
            const DeviceTensor dx(x, place);
            for (const DType yt : kActivations) {
              SCOPED_TRACE(::testing::Message()
                           << shape.rows << " x " << shape.n_in << " x " << shape.n_out << " w "
                           << dtype_name(wt) << " x " << dtype_name(xt) << " y " << dtype_name(yt)
                           << (mode == Mode::kExact ? " exact" : "")
                           << (place == Place::kOdd ? " odd" : ""));
              const DeviceTensor y = output(yt, shape.rows, shape.n_out, place);
              linear(device.context(), dw.linear(), dx.matrix(), y.matrix());
              Tensor got = y.get();
              EXPECT_LT(nmse(got, truth), bound(yt));
            }
            // Into a stream that holds something, with the right result from the first call on.
            Tensor stream(DType::kF32, shape.rows, shape.n_out);
            stream.fill(3);
            std::vector<double> sum = truth;
            for (int64_t i = 0; i < shape.rows * shape.n_out; ++i) {
              sum[static_cast<size_t>(i)] += stream.get(i / shape.n_out, i % shape.n_out);
            }
            const DeviceTensor dstream(stream, place);
            linear(device.context(), dw.linear(), dx.matrix(), dstream.matrix(), true);
            Tensor got = dstream.get();
            EXPECT_LT(nmse(got, sum), bound(DType::kF32));
          }
        }
      }
    }
  }
}

// Real shapes: whatever the number of rows, row r of it has the bits that it has alone.
TEST(LinearCuda, ExactRowsDoNotDependOnTheirNumber) {
  const Device device(Mode::kExact);
  const CudaContext& context = device.context();
  constexpr int64_t kRows = 1300;
  constexpr int64_t kCounts[] = {1,   2,   3,   4,   7,    8,    15,   16,   17,  31,  33,
                                 63,  64,  65,  100, 127,  128,  129,  192,  255, 256, 257,
                                 383, 512, 513, 768, 1000, 1023, 1024, 1025, 1300};
  constexpr int64_t kAlone[] = {0,   1,   5,   8,   15,  16,   63,   64,
                                100, 255, 256, 511, 700, 1023, 1024, 1299};
  struct Case {
    int64_t n_out, n_in;
    DType y;
    bool accumulate;
  };
  for (const Case& c : {Case{512, 256, DType::kBF16, false}, Case{256, 384, DType::kF32, true},
                        Case{2560, 9216, DType::kF32, true}, Case{18432, 2560, DType::kBF16, false},
                        Case{12288, 2560, DType::kBF16, false}, Case{64, 2560, DType::kF32, false},
                        Case{2560, 4096, DType::kF32, true}, Case{17408, 3136, DType::kBF16, false},
                        Case{3136, 7680, DType::kF32, true}, Case{12544, 3136, DType::kBF16, false},
                        Case{3136, 12544, DType::kF32, true}, Case{96, 3136, DType::kF32, false},
                        Case{4096, 2688, DType::kF32, false}}) {
    SCOPED_TRACE(::testing::Message() << c.n_out << " x " << c.n_in << " y " << dtype_name(c.y));
    Tensor w(DType::kBF16, 512, c.n_in), x(DType::kBF16, kRows, c.n_in);
    w.fill(1);
    x.fill(2);
    const int64_t block_bytes = 512 * c.n_in * 2;
    const DeviceWeight block(w);
    const DeviceBuffer weight(c.n_out * c.n_in * 2);
    for (int64_t at = 0; at < weight.bytes(); at += block_bytes) {
      cuda_check(cudaMemcpy(static_cast<char*>(weight.data()) + at, block.linear().weight,
                            static_cast<size_t>(std::min(block_bytes, weight.bytes() - at)),
                            cudaMemcpyDeviceToDevice),
                 "weight");
    }
    const LinearCuda linear_of{weight.data(), WeightType::kBF16, c.n_out, c.n_in, nullptr};
    const DeviceTensor dx(x, Place::kPieces);
    const int64_t row_bytes = c.n_out * dtype_bytes(c.y);
    std::vector<unsigned char> stream(static_cast<size_t>(kRows * row_bytes));
    if (c.accumulate) {
      Tensor values(DType::kF32, 1, c.n_out);
      values.fill(3);
      for (int64_t r = 0; r < kRows; ++r) {
        std::memcpy(stream.data() + r * row_bytes, values.data(), static_cast<size_t>(row_bytes));
      }
    }
    DeviceBuffer y(kRows * row_bytes);
    const Matrix dy{y.data(), c.y, kRows, c.n_out, c.n_out};
    // All rows of y after the rows [first, first + count) were computed.
    const auto run = [&](int64_t first, int64_t count) {
      y.upload(stream);
      linear(context, linear_of, dx.matrix().slice_rows(first, count), dy.slice_rows(first, count),
             c.accumulate);
      device.wait();
      return y.download<unsigned char>(kRows * row_bytes);
    };
    const std::vector<unsigned char> all = run(0, kRows);
    const auto differ = [&](const std::vector<unsigned char>& got, int64_t first, int64_t count) {
      int64_t n = 0;
      for (int64_t r = first; r < first + count; ++r) {
        n += std::memcmp(got.data() + r * row_bytes, all.data() + r * row_bytes,
                         static_cast<size_t>(row_bytes)) != 0;
      }
      return n;
    };
    for (const int64_t r : kAlone) EXPECT_EQ(differ(run(r, 1), r, 1), 0) << "row " << r << " alone";
    for (const int64_t count : kCounts) EXPECT_EQ(differ(run(0, count), 0, count), 0) << count;
    EXPECT_EQ(differ(run(3, 300), 3, 300), 0) << "at another place of a batch";
  }
}

// Few outputs have a kernel of their own in kFast: a row's bits are the same in 2 rows and in 32.
// Row lengths that end within a warp's turn, outputs that end within a block.
TEST(LinearCuda, RowsOfFewOutputsDoNotDependOnTheirNumber) {
  const Device device(Mode::kFast);
  constexpr int64_t kRows = 32;
  for (const Shape& shape : {Shape{kRows, 32, 8}, Shape{kRows, 96, 64}, Shape{kRows, 2560, 64},
                             Shape{kRows, 3136, 96}, Shape{kRows, 1056, 200}}) {
    SCOPED_TRACE(::testing::Message() << shape.n_in << " x " << shape.n_out);
    Tensor w(DType::kBF16, shape.n_out, shape.n_in), x(DType::kBF16, kRows, shape.n_in);
    w.fill(1);
    x.fill(2);
    const std::vector<double> truth = ref::linear(x.matrix(), w.matrix(), nullptr);
    const DeviceWeight dw(w);
    const DeviceTensor dx(x, Place::kPieces);
    const auto run = [&](int64_t rows) {
      const DeviceTensor y = output(DType::kF32, kRows, shape.n_out, Place::kPieces);
      linear(device.context(), dw.linear(), dx.matrix().slice_rows(0, rows),
             y.matrix().slice_rows(0, rows));
      return y.get();
    };
    Tensor all = run(kRows);
    EXPECT_LT(nmse(all, truth), bound(DType::kF32));
    for (const int64_t rows : {2, 3, 7, 8, 9, 15, 16, 17, 24, 31}) {
      Tensor some = run(rows);
      for (int64_t r = 0; r < rows; ++r) {
        EXPECT_TRUE(same_row(all, r, some, r)) << rows << " rows, row " << r;
      }
    }
  }
}

TEST(LinearCuda, RowsDoNotPoisonOneAnother) {
  for (const Mode mode : {Mode::kFast, Mode::kExact}) {
    const Device device(mode);
    for (const int64_t rows : {4, 20}) {
      Tensor w(DType::kBF16, 104, 96), x(DType::kBF16, rows, 96);
      w.fill(1);
      x.fill(2);
      const DeviceWeight dw(w);
      const auto run = [&] {
        const DeviceTensor dx(x, Place::kPieces);
        const DeviceTensor y = output(DType::kF32, rows, 104, Place::kPieces);
        linear(device.context(), dw.linear(), dx.matrix(), y.matrix());
        return y.get();
      };
      Tensor clean = run();
      for (int64_t i = 0; i < 96; ++i) x.set(2, i, i % 2 == 0 ? NAN : INFINITY);
      Tensor poisoned = run();
      for (int64_t r = 0; r < rows; ++r) EXPECT_EQ(same_row(clean, r, poisoned, r), r != 2);
    }
  }
}

// What a graph replays is what was launched.
TEST(LinearCuda, RunsInAGraph) {
  const Device device;
  const CudaContext& context = device.context();
  Tensor w(DType::kBF16, 512, 256), x(DType::kBF16, 64, 256), stream(DType::kF32, 64, 512);
  w.fill(1);
  x.fill(2);
  stream.fill(3);
  const DeviceWeight dw(w);
  const DeviceTensor dx(x, Place::kPieces), eager(stream, Place::kPieces),
      replayed(stream, Place::kPieces);
  linear(context, dw.linear(), dx.matrix(), eager.matrix(), true);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t run = nullptr;
  cuda_check(cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeThreadLocal), "capture");
  linear(context, dw.linear(), dx.matrix(), replayed.matrix(), true);
  cuda_check(cudaStreamEndCapture(context.stream(), &graph), "capture");
  cuda_check(cudaGraphInstantiate(&run, graph, 0), "graph");
  cuda_check(cudaGraphLaunch(run, context.stream()), "graph");
  Tensor a = eager.get(), b = replayed.get();
  expect_same(a, b);
  cudaGraphExecDestroy(run);
  cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace replayssm::ops::cuda
