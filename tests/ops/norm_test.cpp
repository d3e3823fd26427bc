#include "ops/norm.h"

#include "fixture.h"
#include "ops/ref/ref.h"

namespace replayssm::ops {
namespace {

constexpr int64_t kCols[] = {1, 15, 16, 17, 100, 1023, 3136};

TEST(Norm, RmsMatchesReference) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const int64_t cols : kCols) {
      for (const DType xt : kActivations) {
        for (const DType yt : kActivations) {
          for (const int kind : {0, 1, 2}) {  // none, plain, zero-centred
            SCOPED_TRACE(::testing::Message() << cols << " columns, kind " << kind);
            const std::vector<float> w = random_weights(cols, 5);
            const NormWeight weight{kind == 0 ? nullptr : w.data(), kind == 2};
            Tensor x(xt, 9, cols);
            Tensor y(yt, 9, cols);
            x.fill(1, 2.0f, 0.3f);
            rms_norm(context, x.matrix(), weight, 1e-5f, y.matrix());
            EXPECT_LT(nmse(y, ref::rms_norm(x.matrix(), weight, 1e-5f)), bound(yt));
            EXPECT_TRUE(y.intact());
            if (xt == yt) {
              rms_norm(context, x.matrix(), weight, 1e-5f, x.matrix());
              for (int64_t r = 0; r < 9; ++r) EXPECT_TRUE(same_row(x, r, y, r));
            }
          }
        }
      }
    }
  });
}

TEST(Norm, HeadNormMatchesReference) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const int64_t dim : {8, 64, 100, 256}) {
      for (const DType dtype : kActivations) {
        const std::vector<float> w = random_weights(dim, 5);
        Tensor x(dtype, 11, 6 * dim);
        x.fill(1);
        // Every second head only, as in an interleaved [q | gate] projection.
        Heads heads = x.heads(6);
        heads.heads = 3;
        heads.head_stride = 2 * dim;
        const std::vector<double> truth = ref::head_norm(heads, {w.data(), true}, 1e-6f);
        Tensor before = x;
        head_norm(context, heads, {w.data(), true}, 1e-6f);
        double error = 0.0;
        for (int64_t t = 0; t < 11; ++t) {
          for (int64_t c = 0; c < 6 * dim; ++c) {
            if (c / dim % 2 == 1) {
              ASSERT_EQ(x.get(t, c), before.get(t, c));
            } else {
              const double e = x.get(t, c) - truth[(t * 3 + c / dim / 2) * dim + c % dim];
              error += e * e;
            }
          }
        }
        EXPECT_LT(error / (33 * dim), bound(dtype));
        EXPECT_TRUE(x.intact());
      }
    }
  });
}

TEST(Norm, GatedMatchesReference) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const GateOrder order :
         {GateOrder::kGateThenNorm, GateOrder::kNormThenGate, GateOrder::kGateOnly}) {
      for (const GateFunction gate : {GateFunction::kSilu, GateFunction::kSigmoid}) {
        for (const int64_t size : {5, 64, 100}) {
          for (const bool shared : {false, true}) {
            for (const DType dtype : kActivations) {
              SCOPED_TRACE(::testing::Message()
                           << "order " << static_cast<int>(order) << " group " << size);
              const int64_t cols = 3 * size;
              const std::vector<float> w = random_weights(cols, 5);
              const GatedNorm norm{order, gate, size, {w.data(), false}, shared, 1e-5f};
              Tensor y(DType::kF32, 7, cols);
              Tensor z(dtype, 7, cols, 9);
              Tensor out(dtype, 7, cols);
              y.fill(1);
              z.fill(2, 3.0f);
              gated_norm(context, norm, y.matrix(), z.matrix(), out.matrix());
              EXPECT_LT(nmse(out, ref::gated_norm(norm, y.matrix(), z.matrix())), bound(dtype));
              EXPECT_TRUE(out.intact());
              // In place of the gate.
              gated_norm(context, norm, y.matrix(), z.matrix(), z.matrix());
              for (int64_t r = 0; r < 7; ++r) EXPECT_TRUE(same_row(z, r, out, r));
            }
          }
        }
      }
    }
  });
}

// Six groups in tiles of two: those of key head 0, 1 in turn.
TEST(Norm, GatedGroupsCanBeTiled) {
  on_each_backend([](const Context& context, const Backend&) {
    constexpr int64_t kSize = 24, kTiled[] = {0, 2, 4, 1, 3, 5};
    const std::vector<float> w = random_weights(kSize, 5);
    GatedNorm norm{GateOrder::kNormThenGate, GateFunction::kSilu, kSize, {w.data(), false}, true};
    Tensor y(DType::kBF16, 7, 6 * kSize), z(DType::kBF16, 7, 6 * kSize);
    Tensor plain(DType::kBF16, 7, 6 * kSize), tiled(DType::kBF16, 7, 6 * kSize);
    y.fill(1);
    z.fill(2, 3.0f);
    gated_norm(context, norm, y.matrix(), z.matrix(), plain.matrix());
    norm.tile = 2;
    gated_norm(context, norm, y.matrix(), z.matrix(), tiled.matrix());
    for (int64_t r = 0; r < 7; ++r) {
      for (int64_t g = 0; g < 6; ++g) {
        EXPECT_EQ(std::memcmp(plain.matrix().at(r, g * kSize),
                              tiled.matrix().at(r, kTiled[g] * kSize), kSize * 2),
                  0)
            << r << " " << g;
      }
    }
  });
}

TEST(Norm, RowsAndThreadsDoNotChangeBits) {
  const int64_t cols = 1000;
  const std::vector<float> w = random_weights(cols, 5);
  const GatedNorm norm{
      GateOrder::kGateThenNorm, GateFunction::kSilu, 125, {w.data(), false}, false, 1e-5f};
  for (const Backend& backend : backends()) {
    SCOPED_TRACE(backend.name());
    Tensor x(DType::kF32, 50, cols);
    Tensor z(DType::kF32, 50, cols);
    x.fill(1);
    z.fill(2);
    ThreadPool one(1);
    ThreadPool two(2);
    const Context single(one, backend.isa, backend.bf16_dot);
    const Context both(two, backend.isa, backend.bf16_dot);
    Tensor rows(DType::kF32, 50, cols);
    Tensor batch(DType::kF32, 50, cols);
    Tensor gated_rows(DType::kF32, 50, cols);
    Tensor gated_batch(DType::kF32, 50, cols);
    for (int64_t r = 0; r < 50; ++r) {
      rms_norm(single, x.matrix().slice_rows(r, 1), {w.data()}, 1e-6f,
               rows.matrix().slice_rows(r, 1));
      gated_norm(single, norm, x.matrix().slice_rows(r, 1), z.matrix().slice_rows(r, 1),
                 gated_rows.matrix().slice_rows(r, 1));
    }
    rms_norm(both, x.matrix(), {w.data()}, 1e-6f, batch.matrix());
    gated_norm(both, norm, x.matrix(), z.matrix(), gated_batch.matrix());
    for (int64_t r = 0; r < 50; ++r) {
      ASSERT_TRUE(same_row(rows, r, batch, r));
      ASSERT_TRUE(same_row(gated_rows, r, gated_batch, r));
    }
  }
}

}  // namespace
}  // namespace replayssm::ops
