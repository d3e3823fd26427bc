#include "device_fixture.h"
#include "fp8_weight.h"
#include "ops/cuda/elementwise_cuda.h"
#include "ops/cuda/linear_cuda.h"

namespace replayssm::ops::cuda {
namespace {

class DeviceFp8Weight {
 public:
  explicit DeviceFp8Weight(const Fp8Weight& w)
      : bytes_(w.bytes),
        scales_(w.scales),
        linear_{bytes_.data(), w.type, w.n_out, w.n_in, static_cast<const float*>(scales_.data())} {
  }
  const LinearCuda& linear() const { return linear_; }

 private:
  DeviceBuffer bytes_, scales_;
  LinearCuda linear_;
};

constexpr WeightType kTypes[] = {WeightType::kFp8Row, WeightType::kFp8Block};

// Against the weight as stored and x as it is: what remains is the rounding of x to E4M3, 2^-4 at
// most and some 2^-5.5 rms.
TEST(LinearFp8Cuda, MatchesReference) {
  for (const Mode mode : {Mode::kFast, Mode::kExact}) {
    const Device device(mode);
    for (const WeightType type : kTypes) {
      for (const int64_t rows : {1, 3, 4, 5, 8, 18, 64, 65}) {
        const bool narrow = rows == 65;
        const Fp8Weight w(type, narrow ? 48 : 256, narrow ? 400 : 384);
        const DeviceFp8Weight dw(w);
        Tensor x(DType::kBF16, rows, w.n_in);
        x.fill(2, 3.0f);
        std::vector<double> truth;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t o = 0; o < w.n_out; ++o) {
            double sum = 0.0;
            for (int64_t i = 0; i < w.n_in; ++i) {
              sum += static_cast<double>(w.get(o, i)) * static_cast<double>(x.get(r, i));
            }
            truth.push_back(sum);
          }
        }
        const DeviceTensor dx(x, Place::kPieces);
        for (const bool accumulate : {false, true}) {
          for (const DType yt : kActivations) {
            if (accumulate && yt != DType::kF32) continue;
            SCOPED_TRACE(::testing::Message()
                         << "type " << static_cast<int>(type) << " rows " << rows << " y "
                         << dtype_name(yt) << (accumulate ? " accumulate" : "")
                         << (mode == Mode::kExact ? " exact" : ""));
            Tensor y(yt, rows, w.n_out);
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t o = 0; o < w.n_out; ++o) y.set(r, o, accumulate ? 1.5f : 0.0f);
            }
            const DeviceTensor dy(y, Place::kPieces);
            linear(device.context(), dw.linear(), dx.matrix(), dy.matrix(), accumulate);
            Tensor got = dy.get();
            std::vector<double> expected = truth;
            for (double& value : expected) value += accumulate ? 1.5 : 0.0;
            EXPECT_LT(nmse(got, expected), 1e-3);
          }
        }
      }
    }
  }
}

TEST(LinearFp8Cuda, ExactRowsDoNotDependOnTheirNumber) {
  const Device device(Mode::kExact);
  constexpr int64_t kRows = 1300;  // more than go at once
  struct Case {
    int64_t n_out, n_in;
    DType y;
    bool accumulate;
  };
  for (const WeightType type : kTypes) {
    for (const Case& c :
         {Case{64, 1024, DType::kBF16, false}, Case{2560, 1024, DType::kBF16, false},
          Case{1024, 4096, DType::kF32, true}}) {
      SCOPED_TRACE(::testing::Message()
                   << c.n_out << " x " << c.n_in << ", type " << static_cast<int>(type));
      const Fp8Weight w(type, c.n_out, c.n_in);
      const DeviceFp8Weight dw(w);
      Tensor x(DType::kBF16, kRows, c.n_in), before(c.y, kRows, c.n_out);
      x.fill(2);
      before.fill(3);
      const DeviceTensor dx(x, Place::kPieces);
      const auto run = [&](int64_t first, int64_t count) {
        const DeviceTensor y(before, Place::kPieces);
        linear(device.context(), dw.linear(), dx.matrix().slice_rows(first, count),
               y.matrix().slice_rows(first, count), c.accumulate);
        return y.get();
      };
      Tensor all = run(0, kRows);
      for (const int64_t count : {1, 2, 3, 4, 7, 16, 33, 64, 100, 257, 512, 1000, 1024, 1025}) {
        Tensor some = run(0, count);
        int64_t differ = 0;
        for (int64_t r = 0; r < count; ++r) differ += same_row(some, r, all, r) ? 0 : 1;
        EXPECT_EQ(differ, 0) << count << " rows";
      }
      for (const int64_t r : {700, 1023, 1024, 1299}) {
        Tensor alone = run(r, 1);
        EXPECT_TRUE(same_row(alone, r, all, r)) << "row " << r << " alone";
      }
      Tensor later = run(1000, 300);
      int64_t differ = 0;
      for (int64_t r = 1000; r < kRows; ++r) differ += same_row(later, r, all, r) ? 0 : 1;
      EXPECT_EQ(differ, 0) << "at another place of a batch";
    }
  }
}

// An activation on the way to E4M3 has the bits of two steps.
TEST(LinearFp8Cuda, ActivatedHasTheBitsOfTwoSteps) {
  for (const Mode mode : {Mode::kFast, Mode::kExact}) {
    const Device device(mode);
    const CudaContext& context = device.context();
    for (const WeightType type : kTypes) {
      for (const int64_t rows : {1, 3, 4, 65}) {
        const Fp8Weight w(type, 256, 384);
        const DeviceFp8Weight dw(w);
        Tensor in(DType::kBF16, rows, 2 * w.n_in);
        in.fill(2, 3.0f);
        const DeviceTensor din(in, Place::kPieces);
        const ConstMatrix gate = din.matrix().slice_cols(0, w.n_in);
        const ConstMatrix up = din.matrix().slice_cols(w.n_in, w.n_in);
        const DeviceTensor x = output(DType::kBF16, rows, w.n_in, Place::kPieces);
        for (const Activation activation : {Activation::kSiluMul, Activation::kRelu2}) {
          const bool gated = activation == Activation::kSiluMul;
          if (gated) {
            silu_mul(context, gate, up, x.matrix());
          } else {
            relu2(context, gate, x.matrix());
          }
          const DeviceTensor want = output(DType::kF32, rows, w.n_out, Place::kPieces);
          const DeviceTensor got = output(DType::kF32, rows, w.n_out, Place::kPieces);
          linear(context, dw.linear(), x.matrix(), want.matrix());
          linear_activated(context, dw.linear(), activation, gated ? din.matrix() : gate,
                           got.matrix());
          Tensor a = want.get(), b = got.get();
          expect_same(b, a);
        }
      }
    }
  }
}

}  // namespace
}  // namespace replayssm::ops::cuda
