// Linear of few bits: every kind of code, scale and min, against the double reference on the
// weights that they stand for.
#include <cstddef>

#include "fixture.h"
#include "ops/linear.h"
#include "ops/quant.h"
#include "ops/ref/ref.h"

namespace replayssm::ops {
namespace {

constexpr std::array<int8_t, 16> kInt4 = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr std::array<int8_t, 16> kPlain = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr std::array<int8_t, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
constexpr std::array<int8_t, 16> kE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct Named {
  const char* name;
  QuantFormat format;
};

// What files are mapped to, and what else the kernels tell apart.
const Named kFormats[] = {
    {"Q4_0", {Codes::kNibble, kInt4, 32, GroupScale::kF16, GroupMin::kNone, false, false}},
    {"Q4_1", {Codes::kNibble, kPlain, 32, GroupScale::kF16, GroupMin::kAdded, false, false}},
    {"Q4_K", {Codes::kNibble, kPlain, 32, GroupScale::kU8, GroupMin::kSuper, true, false}},
    {"IQ4_XS", {Codes::kNibble, kIq4, 32, GroupScale::kI8, GroupMin::kNone, true, false}},
    {"MXFP4", {Codes::kNibble, kE2m1, 32, GroupScale::kE8m0, GroupMin::kNone, false, true}},
    {"NVFP4", {Codes::kNibble, kE2m1, 16, GroupScale::kE4m3, GroupMin::kNone, false, true}},
    {"INT4", {Codes::kNibble, kInt4, 128, GroupScale::kBF16, GroupMin::kNone, false, false}},
    {"AWQ", {Codes::kNibble, kPlain, 64, GroupScale::kF16, GroupMin::kZero, false, false}},
    {"Q5_0", {Codes::kInt6, {}, 32, GroupScale::kF16, GroupMin::kNone, false, false}},
    {"Q5_K", {Codes::kInt6, {}, 32, GroupScale::kU8, GroupMin::kSuper, true, false}},
    {"Q6_K", {Codes::kInt6, {}, 16, GroupScale::kI8, GroupMin::kNone, true, false}},
    {"Q8_0", {Codes::kInt8, {}, 32, GroupScale::kF16, GroupMin::kNone, false, false}},
    {"INT8", {Codes::kInt8, {}, 128, GroupScale::kNone, GroupMin::kNone, false, true}},
    {"FP8 per output", {Codes::kE4m3, {}, 128, GroupScale::kNone, GroupMin::kNone, false, true}},
    {"FP8 by blocks", {Codes::kE4m3, {}, 128, GroupScale::kF32, GroupMin::kNone, false, false}},
};

// Any row, the same each time it is read.
void random_row(const QuantFormat& format, int64_t cols, int64_t row, QuantRow& out) {
  std::mt19937 random(static_cast<uint32_t>(row * 77 + 5));
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  const int64_t groups = (cols + format.group - 1) / format.group;
  for (int64_t i = 0; i < cols; ++i) {
    uint32_t code = below(256);
    if (format.codes == Codes::kNibble) code &= 15;
    if (format.codes == Codes::kInt6) code = static_cast<uint8_t>(static_cast<int>(code & 63) - 32);
    if (format.codes == Codes::kE4m3 && (code & 0x7f) == 0x7f) code = 0x03;  // no NaN, subnormals
    out.codes[i] = static_cast<uint8_t>(code);
  }
  const auto put16 = [&](void* to, int64_t index, uint16_t bits) {
    std::memcpy(static_cast<char*>(to) + 2 * index, &bits, 2);
  };
  const auto number = [&] { return 0.01f * static_cast<float>(1 + below(200)); };
  for (int64_t g = 0; g < groups; ++g) {
    const float scale = number();
    switch (format.scale) {
      case GroupScale::kNone:
        break;
      case GroupScale::kF16:
        put16(out.scales, g, float_to_half(scale));
        break;
      case GroupScale::kBF16:
        put16(out.scales, g, float_to_bf16(scale));
        break;
      case GroupScale::kF32:
        std::memcpy(out.scales + 4 * g, &scale, 4);
        break;
      case GroupScale::kU8:
        out.scales[g] = static_cast<std::byte>(below(64));
        break;
      case GroupScale::kI8:
        out.scales[g] = static_cast<std::byte>(below(256));
        break;
      case GroupScale::kE4m3:
        out.scales[g] = static_cast<std::byte>(g % 3 == 0 ? below(8) : below(0x7e));
        break;
      case GroupScale::kE8m0:
        out.scales[g] = static_cast<std::byte>(120 + below(12));
        break;
    }
    if (format.min == GroupMin::kAdded) put16(out.mins, g, float_to_half(-number()));
    if (format.min == GroupMin::kSuper) out.mins[g] = static_cast<std::byte>(below(64));
    if (format.min == GroupMin::kZero) out.mins[g] = static_cast<std::byte>(below(17));
  }
  for (int64_t s = 0; format.super && s * kSuperBlock < cols; ++s) {
    out.super[s] = float_to_half(0.03f * number());
    if (format.min == GroupMin::kSuper) out.super_min[s] = float_to_half(0.3f * number());
  }
  out.output_scale = number();
}

QuantMatrix matrix_of(const QuantFormat& format, int64_t rows, int64_t cols) {
  return {format, rows, cols,
          [format, cols](int64_t row, QuantRow& out) { random_row(format, cols, row, out); }};
}

// The weights in fp32.
Tensor dequantised(const QuantMatrix& matrix) {
  Tensor out(DType::kF32, matrix.rows, matrix.cols, 0);
  QuantRowBuffer buffer(matrix.format, matrix.cols);
  for (int64_t r = 0; r < matrix.rows; ++r) {
    matrix.read(r, buffer.row());
    dequantise_row(matrix.format, matrix.cols, buffer.row(),
                   static_cast<float*>(out.matrix().at(r)));
  }
  return out;
}

struct Shape {
  int64_t rows, n_in, n_out;
};

TEST(LinearQuant, MatchesReference) {
  for (const Named& named : kFormats) {
    for (const Shape& shape : {Shape{1, 512, 65}, Shape{3, 256, 64}, Shape{5, 768, 130},
                               Shape{13, 256, 70}, Shape{40, 512, 200}}) {
      const QuantMatrix matrix = matrix_of(named.format, shape.n_out, shape.n_in);
      Tensor weights = dequantised(matrix);
      const std::vector<float> bias = random_weights(shape.n_out, 3);
      const Linear linear = Linear::pack(matrix, bias.data());
      for (const DType xt : kActivations) {
        SCOPED_TRACE(::testing::Message() << named.name << " " << shape.rows << " x " << shape.n_in
                                          << " x " << shape.n_out << " x " << dtype_name(xt));
        Tensor x(xt, shape.rows, shape.n_in);
        x.fill(2);
        const std::vector<double> truth = ref::linear(x.matrix(), weights.matrix(), bias.data());
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

// Rows of any width: the last group is short.
TEST(LinearQuant, ShortLastGroups) {
  for (const Named& named : kFormats) {
    if (named.format.super) continue;
    SCOPED_TRACE(named.name);
    for (const int64_t n_in : {int64_t{1}, int64_t{47}, int64_t{163}}) {
      const QuantMatrix matrix = matrix_of(named.format, 66, n_in);
      Tensor weights = dequantised(matrix);
      const Linear linear = Linear::pack(matrix);
      Tensor x(DType::kBF16, 9, n_in);
      x.fill(2);
      const std::vector<double> truth = ref::linear(x.matrix(), weights.matrix(), nullptr);
      on_each_backend([&](const Context& context, const Backend&) {
        Tensor y(DType::kF32, 9, 66);
        linear.run(context, x.matrix(), y.matrix());
        EXPECT_LT(nmse(y, truth), 1e-9) << n_in;
        Tensor few(DType::kF32, 2, 66);
        linear.run(context, x.matrix().slice_rows(0, 2), few.matrix());
        for (int64_t r = 0; r < 2; ++r) EXPECT_TRUE(same_row(few, r, y, r)) << n_in;
      });
    }
  }
}

// Prefill, decode and verify are the same function of a row.
TEST(LinearQuant, RowsDoNotDependOnTheirNumber) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const Named& named : kFormats) {
      SCOPED_TRACE(named.name);
      for (const DType xt : kActivations) {
        const int64_t n_in = 512, n_out = 72;
        const Linear linear = Linear::pack(matrix_of(named.format, n_out, n_in));
        Tensor x(xt, 200, n_in);
        x.fill(2);
        Tensor alone(DType::kF32, 200, n_out);
        for (int64_t r = 0; r < 200; ++r) {
          linear.run(context, x.matrix().slice_rows(r, 1), alone.matrix().slice_rows(r, 1));
        }
        for (const int64_t rows : {2, 3, 4, 5, 6, 7, 8, 11, 13, 24, 25, 49, 191, 192, 193, 200}) {
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

TEST(LinearQuant, ThreadsDoNotChangeBits) {
  for (const Backend& backend : backends()) {
    SCOPED_TRACE(backend.name());
    ThreadPool one(1), five(5);
    const Linear linear = Linear::pack(matrix_of(kFormats[2].format, 1000, 256), nullptr, &five);
    for (const int64_t rows : {1, 40}) {
      Tensor x(DType::kBF16, rows, 256);
      x.fill(2);
      Tensor a(DType::kF32, rows, 1000), b(DType::kF32, rows, 1000);
      linear.run(Context(one, backend.isa, backend.bf16_dot), x.matrix(), a.matrix());
      linear.run(Context(five, backend.isa, backend.bf16_dot), x.matrix(), b.matrix());
      for (int64_t r = 0; r < rows; ++r) ASSERT_TRUE(same_row(a, r, b, r));
    }
  }
}

// More inputs than are held ready at a time, and sums over groups of them.
TEST(LinearQuant, LongRows) {
  for (const Named& named : {kFormats[2], kFormats[7], kFormats[12]}) {
    SCOPED_TRACE(named.name);
    const QuantMatrix matrix = matrix_of(named.format, 3, 40960);
    Tensor weights = dequantised(matrix);
    const Linear linear = Linear::pack(matrix);
    Tensor x(DType::kBF16, 8, 40960);
    x.fill(2);
    const std::vector<double> truth = ref::linear(x.matrix(), weights.matrix(), nullptr);
    on_each_backend([&](const Context& context, const Backend&) {
      Tensor few(DType::kF32, 2, 3);
      Tensor many(DType::kF32, 8, 3);
      linear.run(context, x.matrix().slice_rows(0, 2), few.matrix());
      linear.run(context, x.matrix(), many.matrix());
      EXPECT_LT(nmse(many, truth), 1e-8);
      for (int64_t r = 0; r < 2; ++r) EXPECT_TRUE(same_row(few, r, many, r));
    });
  }
}

// A bad row stays alone.
TEST(LinearQuant, RowsDoNotPoisonOneAnother) {
  on_each_backend([](const Context& context, const Backend&) {
    for (const Named& named : kFormats) {
      const Linear linear = Linear::pack(matrix_of(named.format, 100, 256));
      Tensor x(DType::kBF16, 20, 256);
      x.fill(2);
      Tensor clean(DType::kF32, 20, 100);
      Tensor poisoned(DType::kF32, 20, 100);
      linear.run(context, x.matrix(), clean.matrix());
      for (int64_t i = 0; i < 256; ++i) x.set(7, i, i % 2 == 0 ? NAN : INFINITY);
      linear.run(context, x.matrix(), poisoned.matrix());
      for (int64_t r = 0; r < 20; ++r) EXPECT_EQ(same_row(clean, r, poisoned, r), r != 7);
    }
  });
}

TEST(LinearQuant, GivesRowsBackAndStacks) {
  std::vector<float> got(512), want(512);
  for (const Named& named : kFormats) {
    const QuantMatrix matrix = matrix_of(named.format, 70, 512);
    const Linear linear = Linear::pack(matrix);
    QuantRowBuffer buffer(named.format, 512);
    for (const int64_t row : {0, 1, 63, 64, 69}) {
      matrix.read(row, buffer.row());
      dequantise_row(named.format, 512, buffer.row(), want.data());
      linear.unpack_row(row, got.data());
      ASSERT_EQ(got, want) << named.name << " row " << row;
    }
  }
  // q in four bits, k in six and v in bf16, in one matrix.
  Tensor v(DType::kBF16, 9, 512);
  v.fill(3);
  const QuantMatrix q = matrix_of(kFormats[2].format, 70, 512);
  const QuantMatrix k = matrix_of(kFormats[10].format, 30, 512).slice_rows(10, 5);
  std::vector<Linear> parts;
  parts.push_back(Linear::pack(q));
  parts.push_back(Linear::pack(k));
  parts.push_back(Linear::pack(v.matrix()));
  const size_t bytes = parts[0].bytes() + parts[1].bytes() + parts[2].bytes();
  const Linear all = Linear::stack(std::move(parts));
  EXPECT_EQ(all.n_out(), 84);
  EXPECT_EQ(all.bytes(), bytes);
  on_each_backend([&](const Context& context, const Backend&) {
    Tensor x(DType::kBF16, 3, 512);
    x.fill(4);
    Tensor y(DType::kF32, 3, 84), y_k(DType::kF32, 3, 5), y_v(DType::kF32, 3, 9);
    all.run(context, x.matrix(), y.matrix());
    Linear::pack(k).run(context, x.matrix(), y_k.matrix());
    Linear::pack(v.matrix()).run(context, x.matrix(), y_v.matrix());
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t o = 0; o < 5; ++o) EXPECT_EQ(y.get(r, 70 + o), y_k.get(r, o));
      for (int64_t o = 0; o < 9; ++o) EXPECT_EQ(y.get(r, 75 + o), y_v.get(r, o));
    }
  });
  all.unpack_row(75, got.data());
  EXPECT_EQ(got[3], v.get(0, 3));
}

}  // namespace
}  // namespace replayssm::ops
