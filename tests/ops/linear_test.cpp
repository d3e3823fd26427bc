#include "ops/linear.h"

#include "fixture.h"
#include "ops/ref/ref.h"

namespace replayssm::ops {
namespace {

struct Shape {
  int64_t rows, n_in, n_out;
};

TEST(Linear, MatchesReference) {
  for (const Shape& shape :
       {Shape{1, 1, 1}, Shape{1, 7, 63}, Shape{2, 64, 64}, Shape{5, 33, 130}, Shape{7, 129, 65},
        Shape{13, 256, 200}, Shape{64, 300, 65}, Shape{3, 1000, 70}}) {
    for (const DType wt : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const DType xt : kActivations) {
        SCOPED_TRACE(::testing::Message()
                     << shape.rows << " x " << shape.n_in << " x " << shape.n_out << " w "
                     << dtype_name(wt) << " x " << dtype_name(xt));
        Tensor w(wt, shape.n_out, shape.n_in, 5);
        Tensor x(xt, shape.rows, shape.n_in);
        w.fill(1);
        x.fill(2);
        const std::vector<float> bias = random_weights(shape.n_out, 3);
        const std::vector<double> truth = ref::linear(x.matrix(), w.matrix(), bias.data());
        const Linear linear = Linear::pack(w.matrix(), bias.data());
        on_each_backend([&](const Context& context, const Backend&) {
          for (const DType yt : kActivations) {
            Tensor y(yt, shape.rows, shape.n_out);
            linear.run(context, x.matrix(), y.matrix());
            EXPECT_LT(nmse(y, truth), bound(yt)) << dtype_name(yt);
            EXPECT_TRUE(y.intact());
          }
        });
      }
    }
  }
}

// The invariant: whatever the number of rows, row r has the bits it has alone.
TEST(Linear, RowsDoNotDependOnTheirNumber) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const DType wt : {DType::kF32, DType::kBF16}) {
      for (const DType xt : kActivations) {
        const int64_t n_in = 163;  // more than a chunk, and odd
        const int64_t n_out = 72;
        Tensor w(wt, n_out, n_in);
        Tensor x(xt, 400, n_in);
        w.fill(1);
        x.fill(2);
        const Linear linear = Linear::pack(w.matrix());
        Tensor alone(DType::kF32, 400, n_out);
        for (int64_t r = 0; r < 400; ++r) {
          linear.run(context, x.matrix().slice_rows(r, 1), alone.matrix().slice_rows(r, 1));
        }
        std::vector<int64_t> counts = {191, 192, 193, 385, 400};
        for (int64_t rows = 2; rows <= 130; ++rows) counts.push_back(rows);
        for (const int64_t rows : counts) {
          Tensor y(DType::kF32, rows, n_out);
          linear.run(context, x.matrix().slice_rows(0, rows), y.matrix());
          for (int64_t r = 0; r < rows; ++r) {
            ASSERT_TRUE(same_row(y, r, alone, r)) << "row " << r << " of " << rows;
          }
        }
      }
    }
  });
}

TEST(Linear, ThreadsDoNotChangeBits) {
  for (const Backend& backend : backends()) {
    SCOPED_TRACE(backend.name());
    for (const int64_t rows : {1, 5, 40}) {
      Tensor w(DType::kBF16, 1000, 150);
      Tensor x(DType::kBF16, rows, 150);
      w.fill(1);
      x.fill(2);
      const Linear linear = Linear::pack(w.matrix());
      Tensor first(DType::kBF16, rows, 1000);
      for (const int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        const Context context(pool, backend.isa, backend.bf16_dot);
        Tensor y(DType::kBF16, rows, 1000);
        linear.run(context, x.matrix(), threads == 1 ? first.matrix() : y.matrix());
        for (int64_t r = 0; threads > 1 && r < rows; ++r) ASSERT_TRUE(same_row(y, r, first, r));
      }
    }
  }
}

// A bad row stays alone: NaN and infinity of one row do not reach another.
TEST(Linear, RowsDoNotPoisonOneAnother) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const DType xt : kActivations) {
      Tensor w(DType::kBF16, 100, 77);
      Tensor x(xt, 20, 77);
      w.fill(1);
      x.fill(2);
      const Linear linear = Linear::pack(w.matrix());
      Tensor clean(DType::kF32, 20, 100);
      Tensor poisoned(DType::kF32, 20, 100);
      linear.run(context, x.matrix(), clean.matrix());
      for (int64_t i = 0; i < 77; ++i) x.set(7, i, i % 2 == 0 ? NAN : INFINITY);
      linear.run(context, x.matrix(), poisoned.matrix());
      for (int64_t r = 0; r < 20; ++r) EXPECT_EQ(same_row(clean, r, poisoned, r), r != 7);
    }
  });
}

TEST(Linear, StacksPartsAndGivesRowsBack) {
  Tensor a(DType::kBF16, 70, 45);
  Tensor b(DType::kBF16, 9, 45, 0);
  a.fill(1);
  b.fill(2);
  const ConstMatrix parts[] = {a.matrix(), b.matrix()};
  const Linear both = Linear::pack(parts);
  EXPECT_EQ(both.n_out(), 79);
  EXPECT_EQ(both.dtype(), DType::kBF16);
  Tensor half(DType::kF16, 9, 45);
  half.fill(3);
  const ConstMatrix mixed_parts[] = {a.matrix(), half.matrix()};
  const Linear mixed = Linear::pack(mixed_parts);
  EXPECT_EQ(mixed.dtype(), DType::kF32);
  std::vector<float> row(45);
  for (int64_t o = 0; o < 79; ++o) {
    both.unpack_row(o, row.data());
    for (int64_t i = 0; i < 45; ++i) ASSERT_EQ(row[i], o < 70 ? a.get(o, i) : b.get(o - 70, i));
    mixed.unpack_row(o, row.data());
    for (int64_t i = 0; i < 45; ++i) ASSERT_EQ(row[i], o < 70 ? a.get(o, i) : half.get(o - 70, i));
  }
  on_each_backend([&](const Context& context, const Backend&) {
    Tensor x(DType::kF32, 3, 45);
    x.fill(4);
    Tensor stacked(DType::kF32, 3, 79);
    Tensor single(DType::kF32, 3, 9);
    both.run(context, x.matrix(), stacked.matrix());
    Linear::pack(b.matrix()).run(context, x.matrix(), single.matrix());
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t o = 0; o < 9; ++o) EXPECT_EQ(stacked.get(r, 70 + o), single.get(r, o));
    }
  });
}

TEST(Linear, LongRowsInChunks) {
  on_each_backend([](const Context& context, const Backend&) {
    // Longer than what one chunk of widened bf16 activations holds.
    const int64_t n_in = 40001;
    Tensor w(DType::kF32, 3, n_in);
    Tensor x(DType::kBF16, 8, n_in);
    w.fill(1);
    x.fill(2);
    const Linear linear = Linear::pack(w.matrix());
    Tensor few(DType::kF32, 2, 3);
    Tensor many(DType::kF32, 8, 3);
    linear.run(context, x.matrix().slice_rows(0, 2), few.matrix());
    linear.run(context, x.matrix(), many.matrix());
    EXPECT_LT(nmse(many, ref::linear(x.matrix(), w.matrix(), nullptr)), 1e-8);
    for (int64_t r = 0; r < 2; ++r) EXPECT_TRUE(same_row(few, r, many, r));
  });
}

}  // namespace
}  // namespace replayssm::ops
