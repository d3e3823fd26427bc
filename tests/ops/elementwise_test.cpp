#include "ops/elementwise.h"

#include "fixture.h"
#include "ops/ref/ref.h"
#include "ops/rope.h"

namespace replayssm::ops {
namespace {

TEST(Elementwise, MatchesReference) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const int64_t cols : {1, 16, 31, 2500, 9216}) {
      for (const DType at : kActivations) {
        for (const DType yt : kActivations) {
          SCOPED_TRACE(::testing::Message()
                       << cols << " columns " << dtype_name(at) << " to " << dtype_name(yt));
          Tensor a(at, 5, cols);
          Tensor b(at == DType::kF32 ? DType::kBF16 : DType::kF32, 5, cols, 1);
          Tensor y(yt, 5, cols);
          a.fill(1, 4.0f);
          b.fill(2, 4.0f);
          silu_mul(context, a.matrix(), b.matrix(), y.matrix());
          EXPECT_LT(nmse(y, ref::silu_mul(a.matrix(), b.matrix())), bound(yt));
          relu2(context, a.matrix(), y.matrix());
          EXPECT_LT(nmse(y, ref::relu2(a.matrix())), bound(yt));
          sigmoid_mul(context, a.heads(1), b.heads(1), y.heads(1));
          EXPECT_LT(nmse(y, ref::sigmoid_mul(a.heads(1), b.heads(1))), bound(yt));
          copy(context, a.matrix(), y.matrix());
          for (int64_t c = 0; c < cols; ++c) {
            const float value = a.get(3, c);
            EXPECT_EQ(y.get(3, c), yt == DType::kF32 ? value : bf16_to_float(float_to_bf16(value)));
          }
          EXPECT_TRUE(y.intact());

          Tensor stream(DType::kF32, 5, cols);
          stream.fill(3);
          const std::vector<double> sum = ref::residual_add(stream.matrix(), a.matrix(), 0.22f);
          residual_add(context, stream.matrix(), a.matrix(), 0.22f);
          EXPECT_LT(nmse(stream, sum), bound(DType::kF32));
          EXPECT_TRUE(stream.intact());

          if (at == yt) {
            silu_mul(context, a.matrix(), b.matrix(), y.matrix());
            silu_mul(context, a.matrix(), b.matrix(), a.matrix());
            for (int64_t r = 0; r < 5; ++r) EXPECT_TRUE(same_row(a, r, y, r));
          }
        }
      }
    }
  });
}

TEST(Elementwise, OneElementHasTheBitsItHasInARow) {
  on_each_backend([](const Context& context, const Backend&) {
    Tensor gate(DType::kF32, 1, 3000);
    Tensor up(DType::kF32, 1, 3000);
    Tensor whole(DType::kF32, 1, 3000);
    Tensor single(DType::kF32, 1, 3000);
    gate.fill(1, 5.0f);
    up.fill(2);
    silu_mul(context, gate.matrix(), up.matrix(), whole.matrix());
    for (int64_t c = 0; c < 3000; ++c) {
      silu_mul(context, gate.matrix().slice_cols(c, 1), up.matrix().slice_cols(c, 1),
               single.matrix().slice_cols(c, 1));
    }
    EXPECT_TRUE(same_row(whole, 0, single, 0));
  });
}

TEST(Elementwise, InterleavedGateOfHeads) {
  on_each_backend([](const Context& context, const Backend&) {
    const int64_t dim = 72;
    Tensor x(DType::kF32, 4, 3 * dim);
    Tensor projection(DType::kBF16, 4, 6 * dim);  // [q | gate] a head
    x.fill(1);
    projection.fill(2);
    ConstHeads gate = projection.heads(6);
    gate.heads = 3;
    gate.data = gate.at(0, 1);
    gate.head_stride = 2 * dim;
    const std::vector<double> truth = ref::sigmoid_mul(x.heads(3), gate);
    sigmoid_mul(context, x.heads(3), gate, x.heads(3));
    EXPECT_LT(nmse(x, truth), bound(DType::kF32));
    EXPECT_TRUE(x.intact());
  });
}

TEST(Elementwise, EmbedsFromTableAndFromPackedWeight) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      Tensor table(dtype, 150, 77);
      table.fill(1);
      const Linear packed = Linear::pack(table.matrix());
      const int32_t tokens[] = {149, 0, 3, 3, 64, 63};
      for (const DType yt : kActivations) {
        Tensor a(yt, 6, 77);
        Tensor b(yt, 6, 77);
        embed(context, table.matrix(), tokens, a.matrix(), 12.0f);
        embed(context, packed, tokens, b.matrix(), 12.0f);
        for (int64_t r = 0; r < 6; ++r) {
          EXPECT_TRUE(same_row(a, r, b, r));
          const float value = 12.0f * table.get(tokens[r], 76);
          EXPECT_EQ(a.get(r, 76), yt == DType::kF32 ? value : bf16_to_float(float_to_bf16(value)));
        }
        EXPECT_TRUE(a.intact());
        EXPECT_TRUE(b.intact());
      }
    }
  });
}

TEST(Rope, MatchesReferenceAndDependsOnPositionAlone) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const int32_t rotary : {0, 2, 30, 64, 128}) {
      for (const DType dtype : kActivations) {
        const int64_t dim = 128;
        const std::vector<int64_t> positions = {0, 1, 7, 1000, 262143, 7};
        const int64_t n = static_cast<int64_t>(positions.size());
        Tensor x(dtype, n, 3 * dim);
        x.fill(1);
        for (int64_t c = 0; c < 3 * dim; ++c) x.set(5, c, x.get(2, c));
        const std::vector<double> truth = ref::rope(x.heads(3), positions.data(), rotary, 1e7);
        const Rope rope(rotary, 1e7);
        std::vector<float> table(static_cast<size_t>(n * rotary + 1));
        rope.angles(context, positions.data(), n, table.data());
        Tensor single = x;
        rope.apply(context, table.data(), x.heads(3));
        EXPECT_LT(nmse(x, truth), bound(dtype));
        EXPECT_TRUE(x.intact());
        EXPECT_TRUE(same_row(x, 5, x, 2));

        std::vector<float> row(static_cast<size_t>(rotary + 1));
        rope.angles(context, &positions[3], 1, row.data());
        Heads one = single.heads(3);
        one.data = one.at(3, 0);
        one.tokens = 1;
        rope.apply(context, row.data(), one);
        EXPECT_TRUE(same_row(x, 3, single, 3));
      }
    }
  });
}

}  // namespace
}  // namespace replayssm::ops
