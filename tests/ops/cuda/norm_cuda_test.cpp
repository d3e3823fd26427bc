#include "ops/cuda/norm_cuda.h"

#include "device_fixture.h"
#include "ops/cuda/elementwise_cuda.h"
#include "ops/ref/ref.h"

namespace replayssm::ops::cuda {
namespace {

NormWeight on_device(const DeviceBuffer& weight, bool zero_centred) {
  return {static_cast<const float*>(weight.data()), zero_centred};
}

TEST(NormCuda, RmsMatchesReference) {
  const Device device;
  for (const Place place : kPlaces) {
    for (const int64_t cols : {1, 15, 16, 17, 100, 1023, 3136}) {
      for (const DType xt : kActivations) {
        for (const DType yt : kActivations) {
          for (const int kind : {0, 1, 2}) {  // none, plain, zero-centred
            SCOPED_TRACE(::testing::Message() << cols << " columns, kind " << kind);
            const std::vector<float> w = random_weights(cols, 5);
            const DeviceBuffer dw(w);
            const NormWeight weight{kind == 0 ? nullptr : w.data(), kind == 2};
            const NormWeight dweight = kind == 0 ? NormWeight{} : on_device(dw, kind == 2);
            Tensor x(xt, 9, cols);
            x.fill(1, 2.0f, 0.3f);
            const DeviceTensor dx(x, place), y = output(yt, 9, cols, place);
            rms_norm(device.context(), dx.matrix(), dweight, 1e-5f, y.matrix());
            Tensor got = y.get();
            EXPECT_LT(nmse(got, ref::rms_norm(x.matrix(), weight, 1e-5f)), bound(yt));
            if (xt == yt) {
              rms_norm(device.context(), dx.matrix(), dweight, 1e-5f, dx.matrix());
              Tensor in_place = dx.get();
              expect_same(in_place, got);
            }
          }
        }
      }
    }
  }
}

// The fused kernel has the bits of the two that it replaces; chosen rows those of all rows; and a
// row in pieces those of a row at odd places.
TEST(NormCuda, FusedAndGatheredHaveTheSameBits) {
  const Device device;
  const CudaContext& context = device.context();
  for (const int64_t cols : {72, 2560, 8192}) {
    const DeviceBuffer w(random_weights(cols, 5));
    Tensor x(DType::kF32, 11, cols), delta(DType::kBF16, 11, cols);
    x.fill(1);
    delta.fill(2);
    std::vector<Tensor> streams, normed;
    for (const Place place : kPlaces) {
      const DeviceTensor two(x, place), one(x, place), ddelta(delta, place);
      const DeviceTensor y = output(DType::kBF16, 11, cols, place);
      residual_add(context, two.matrix(), ddelta.matrix());
      rms_norm(context, two.matrix(), on_device(w, true), 1e-6f, y.matrix());
      streams.push_back(two.get());
      normed.push_back(y.get());
      add_rms_norm(context, one.matrix(), ddelta.matrix(), on_device(w, true), 1e-6f, y.matrix());
      streams.push_back(one.get());
      normed.push_back(y.get());
      const std::vector<int64_t> chosen = {10, 0, 0, 7};
      const DeviceBuffer rows(chosen);
      const DeviceTensor few = output(DType::kBF16, 4, cols, place);
      rms_norm(context, two.matrix(), on_device(w, true), 1e-6f, few.matrix(),
               static_cast<const int64_t*>(rows.data()));
      Tensor got = few.get();
      for (int64_t r = 0; r < 4; ++r) {
        EXPECT_TRUE(same_row(got, r, normed[0], chosen[static_cast<size_t>(r)]));
      }
    }
    for (size_t i = 1; i < streams.size(); ++i) {
      expect_same(streams[i], streams[0]);
      expect_same(normed[i], normed[0]);
    }
  }
}

TEST(NormCuda, HeadNormMatchesReference) {
  const Device device;
  for (const Place place : kPlaces) {
    for (const int64_t dim : {8, 64, 100, 256}) {
      for (const DType dtype : kActivations) {
        const std::vector<float> w = random_weights(dim, 5);
        const DeviceBuffer dw(w);
        Tensor x(dtype, 11, 6 * dim);
        x.fill(1);
        const auto every_second = [&](Heads heads) {
          heads.heads = 3;
          heads.head_stride = 2 * dim;
          return heads;
        };
        const std::vector<double> truth =
            ref::head_norm(every_second(x.heads(6)), {w.data(), true}, 1e-6f);
        const DeviceTensor dx(x, place);
        head_norm(device.context(), every_second(dx.heads(6)), on_device(dw, true), 1e-6f);
        Tensor got = dx.get();
        double error = 0.0;
        for (int64_t t = 0; t < 11; ++t) {
          for (int64_t c = 0; c < 6 * dim; ++c) {
            if (c / dim % 2 == 1) {
              ASSERT_EQ(got.get(t, c), x.get(t, c));
            } else {
              const auto i = static_cast<size_t>((t * 3 + c / dim / 2) * dim + c % dim);
              const double e = got.get(t, c) - truth[i];
              error += e * e;
            }
          }
        }
        EXPECT_LT(error / static_cast<double>(33 * dim), bound(dtype));
      }
    }
  }
}

TEST(NormCuda, GatedMatchesReference) {
  const Device device;
  for (const Place place : kPlaces) {
    for (const GateOrder order :
         {GateOrder::kGateThenNorm, GateOrder::kNormThenGate, GateOrder::kGateOnly}) {
      for (const GateFunction gate : {GateFunction::kSilu, GateFunction::kSigmoid}) {
        for (const int64_t size : {5, 64, 100, 960}) {
          for (const bool shared : {false, true}) {
            for (const DType dtype : kActivations) {
              SCOPED_TRACE(::testing::Message()
                           << "order " << static_cast<int>(order) << " group " << size);
              const int64_t cols = 3 * size;
              const std::vector<float> w = random_weights(cols, 5);
              const DeviceBuffer dw(w);
              const GatedNorm norm{order, gate, size, {w.data(), false}, shared, 1e-5f};
              GatedNorm dnorm = norm;
              dnorm.weight = on_device(dw, false);
              Tensor y(DType::kF32, 7, cols), z(dtype, 7, cols);
              y.fill(1);
              z.fill(2, 3.0f);
              const DeviceTensor dy(y, place), dz(z, place), out = output(dtype, 7, cols, place);
              gated_norm(device.context(), dnorm, dy.matrix(), dz.matrix(), out.matrix());
              Tensor got = out.get();
              EXPECT_LT(nmse(got, ref::gated_norm(norm, y.matrix(), z.matrix())), bound(dtype));
              gated_norm(device.context(), dnorm, dy.matrix(), dz.matrix(), dz.matrix());
              Tensor in_place = dz.get();
              expect_same(in_place, got);
            }
          }
        }
      }
    }
  }
}

TEST(NormCuda, GatedGroupsCanBeTiled) {
  const Device device;
  constexpr int64_t kTiled[] = {0, 2, 4, 1, 3, 5};
  for (const int64_t size : {24, 128, 960}) {
    const std::vector<float> w = random_weights(size, 5);
    const DeviceBuffer dw(w);
    GatedNorm norm{GateOrder::kNormThenGate, GateFunction::kSilu, size, {}, true};
    norm.weight = on_device(dw, false);
    Tensor y(DType::kBF16, 7, 6 * size), z(DType::kBF16, 7, 6 * size);
    y.fill(1);
    z.fill(2, 3.0f);
    for (const Place place : kPlaces) {
      const DeviceTensor dy(y, place), dz(z, place);
      const DeviceTensor out = output(DType::kBF16, 7, 6 * size, place);
      gated_norm(device.context(), norm, dy.matrix(), dz.matrix(), out.matrix());
      Tensor plain = out.get();
      norm.tile = 2;
      gated_norm(device.context(), norm, dy.matrix(), dz.matrix(), out.matrix());
      Tensor tiled = out.get();
      norm.tile = 0;
      for (int64_t r = 0; r < 7; ++r) {
        for (int64_t g = 0; g < 6; ++g) {
          EXPECT_EQ(
              std::memcmp(plain.matrix().at(r, g * size), tiled.matrix().at(r, kTiled[g] * size),
                          static_cast<size_t>(size) * 2),
              0)
              << r << " " << g;
        }
      }
    }
  }
}

// Rows in pieces take kernels of their own, by the size of a group.
TEST(NormCuda, GatedHalvesMatchReferenceAndHaveTheBitsOfOddPlaces) {
  const Device device;
  for (const GateOrder order :
       {GateOrder::kGateThenNorm, GateOrder::kNormThenGate, GateOrder::kGateOnly}) {
    for (const int64_t size : {8, 64, 128, 136, 512, 960, 1032}) {
      SCOPED_TRACE(::testing::Message()
                   << "order " << static_cast<int>(order) << " group " << size);
      const int64_t cols = 19 * size;
      const std::vector<float> w = random_weights(cols, 5);
      const DeviceBuffer dw(w);
      const GatedNorm norm{order, GateFunction::kSilu, size, {w.data(), false}, false, 1e-5f};
      GatedNorm dnorm = norm;
      dnorm.weight = on_device(dw, false);
      Tensor y(DType::kBF16, 7, cols), z(DType::kBF16, 7, cols);
      y.fill(1);
      z.fill(2, 3.0f);
      std::vector<Tensor> got;
      for (const Place place : kPlaces) {
        const DeviceTensor dy(y, place), dz(z, place);
        gated_norm(device.context(), dnorm, dy.matrix(), dz.matrix(), dy.matrix());
        got.push_back(dy.get());
      }
      EXPECT_LT(nmse(got[0], ref::gated_norm(norm, y.matrix(), z.matrix())), bound(DType::kBF16));
      expect_same(got[0], got[1]);
    }
  }
}

}  // namespace
}  // namespace replayssm::ops::cuda
