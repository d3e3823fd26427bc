#include "ops/cuda/elementwise_cuda.h"

#include "device_fixture.h"
#include "ops/cuda/rope_cuda.h"
#include "ops/ref/ref.h"

namespace replayssm::ops::cuda {
namespace {

TEST(ElementwiseCuda, MatchesReference) {
  const Device device;
  const CudaContext& context = device.context();
  for (const Place place : kPlaces) {
    for (const int64_t cols : {1, 16, 31, 2500, 9216}) {
      for (const DType at : kActivations) {
        for (const DType yt : kActivations) {
          SCOPED_TRACE(::testing::Message()
                       << cols << " columns " << dtype_name(at) << " to " << dtype_name(yt)
                       << (place == Place::kOdd ? " odd" : ""));
          Tensor a(at, 5, cols), b(at == DType::kF32 ? DType::kBF16 : DType::kF32, 5, cols);
          a.fill(1, 4.0f);
          b.fill(2, 4.0f);
          const DeviceTensor da(a, place), db(b, place);
          const auto expect = [&](const DeviceTensor& y, const std::vector<double>& truth) {
            Tensor got = y.get();
            EXPECT_LT(nmse(got, truth), bound(got.dtype()));
          };
          const DeviceTensor y = output(yt, 5, cols, place);
          silu_mul(context, da.matrix(), db.matrix(), y.matrix());
          expect(y, ref::silu_mul(a.matrix(), b.matrix()));
          relu2(context, da.matrix(), y.matrix());
          expect(y, ref::relu2(a.matrix()));
          sigmoid_mul(context, da.heads(1), db.heads(1), y.heads(1));
          expect(y, ref::sigmoid_mul(a.heads(1), b.heads(1)));
          copy(context, da.matrix(), y.matrix());
          Tensor copied = y.get();
          for (int64_t c = 0; c < cols; ++c) {
            const float value = a.get(3, c);
            EXPECT_EQ(copied.get(3, c),
                      yt == DType::kF32 ? value : bf16_to_float(float_to_bf16(value)));
          }
          Tensor stream(DType::kF32, 5, cols);
          stream.fill(3);
          const DeviceTensor dstream(stream, place);
          residual_add(context, dstream.matrix(), da.matrix(), 0.22f);
          expect(dstream, ref::residual_add(stream.matrix(), a.matrix(), 0.22f));
          if (at == yt) {
            silu_mul(context, da.matrix(), db.matrix(), y.matrix());
            silu_mul(context, da.matrix(), db.matrix(), da.matrix());
            Tensor apart = y.get(), in_place = da.get();
            expect_same(apart, in_place);
          }
        }
      }
    }
  }
}

TEST(ElementwiseCuda, InterleavedGateOfHeads) {
  const Device device;
  for (const Place place : kPlaces) {
    const int64_t dim = 72;
    Tensor x(DType::kF32, 4, 3 * dim), projection(DType::kBF16, 4, 6 * dim);  // [q | gate] a head
    x.fill(1);
    projection.fill(2);
    const auto gate_of = [&](ConstHeads all) {
      all.heads = 3;
      all.data = all.at(0, 1);
      all.head_stride = 2 * dim;
      return all;
    };
    const std::vector<double> truth = ref::sigmoid_mul(x.heads(3), gate_of(projection.heads(6)));
    const DeviceTensor dx(x, place), dprojection(projection, place);
    sigmoid_mul(device.context(), dx.heads(3), gate_of(dprojection.heads(6)), dx.heads(3));
    Tensor got = dx.get();
    EXPECT_LT(nmse(got, truth), bound(DType::kF32));
  }
}

TEST(ElementwiseCuda, Embeds) {
  const Device device;
  const std::vector<int32_t> tokens = {149, 0, 3, 3, 64, 150, -1};
  const DeviceBuffer ids(tokens);
  for (const Place place : kPlaces) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const DType yt : kActivations) {
        Tensor table(dtype, 150, 80);
        table.fill(1);
        const DeviceTensor dtable(table, place);
        const DeviceTensor y = output(yt, 7, 80, place);
        embed(device.context(), dtable.matrix(), static_cast<const int32_t*>(ids.data()),
              y.matrix(), 12.0f);
        Tensor got = y.get();
        for (int64_t r = 0; r < 7; ++r) {
          const float value = r < 5 ? 12.0f * table.get(tokens[static_cast<size_t>(r)], 76) : 0.0f;
          EXPECT_EQ(got.get(r, 76),
                    yt == DType::kF32 ? value : bf16_to_float(float_to_bf16(value)));
        }
      }
    }
  }
}

TEST(RopeCuda, MatchesReferenceAndDependsOnPositionAlone) {
  const Device device;
  const CudaContext& context = device.context();
  const std::vector<int64_t> positions = {0, 1, 7, 1000, 262143, 7};
  const int64_t n = 6, dim = 128;
  const DeviceBuffer at(positions);
  for (const int32_t rotary : {0, 2, 30, 64, 128}) {
    for (const DType dtype : kActivations) {
      Tensor x(dtype, n, 3 * dim);
      x.fill(1);
      for (int64_t c = 0; c < 3 * dim; ++c) x.set(5, c, x.get(2, c));
      const std::vector<double> truth = ref::rope(x.heads(3), positions.data(), rotary, 1e7);
      const DeviceBuffer frequencies(rotary * 8), table(n * rotary * 4);
      rope_frequencies(context, rotary, 1e7, static_cast<double*>(frequencies.data()));
      rope_angles(context, static_cast<const double*>(frequencies.data()), rotary,
                  static_cast<const int64_t*>(at.data()), n, static_cast<float*>(table.data()));
      const DeviceTensor dx(x, Place::kOdd);
      rope_apply(context, static_cast<const float*>(table.data()), rotary, dx.heads(3));
      Tensor got = dx.get();
      EXPECT_LT(nmse(got, truth), bound(dtype));
      EXPECT_TRUE(same_row(got, 5, got, 2));
    }
  }
}

}  // namespace
}  // namespace replayssm::ops::cuda
