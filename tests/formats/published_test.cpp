#include "model/formats/published.h"

#include <gtest/gtest.h>

#include <cstring>

#include "../model/testing.h"
#include "hex.h"

namespace replayssm {
namespace {

// Tensors of a module "m" in a file.
class Module {
 public:
  Module& add(const char* name, FileDType dtype, std::vector<int64_t> shape,
              std::vector<std::byte> data) {
    data_.push_back(std::move(data));
    names_.push_back(std::string("m.") + name);
    tensors_.push_back({names_.back(), dtype, std::move(shape), data_.back().data()});
    return *this;
  }
  template <typename T>
  Module& add(const char* name, FileDType dtype, std::vector<int64_t> shape,
              std::vector<T> values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return add(name, dtype, std::move(shape), std::move(bytes));
  }

  // Row-major weights.
  std::vector<float> read(int64_t rows, int64_t cols, const QuantHints& hints = {}) {
    open();
    auto stored = find_quantised(*files_, "m", rows, cols, hints);
    if (!stored) {
      ADD_FAILURE() << "no few bits";
      return {};
    }
    EXPECT_EQ(stored->used.size(), tensors_.size());
    format = stored->format;
    std::vector<float> out(static_cast<size_t>(rows * cols));
    ops::QuantRowBuffer buffer(stored->matrix.format, cols);
    for (int64_t row = 0; row < rows; ++row) {
      stored->matrix.read(row, buffer.row());
      ops::dequantise_row(stored->matrix.format, cols, buffer.row(), out.data() + row * cols);
    }
    return out;
  }
  std::string refusal(int64_t rows, int64_t cols, const QuantHints& hints = {}) {
    open();
    try {
      return find_quantised(*files_, "m", rows, cols, hints) ? "few bits" : "plain";
    } catch (const Error& error) {
      return error.what();
    }
  }

  std::string format;

 private:
  void open() {
    write_safetensors(folder_.file("m.safetensors"), tensors_);
    files_.emplace(TensorFiles::open_file(folder_.file("m.safetensors")));
  }
  TempFolder folder_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::byte>> data_;
  std::vector<TensorToWrite> tensors_;
  std::optional<TensorFiles> files_;
};

using Words = std::vector<uint32_t>;
using Floats = std::vector<float>;

constexpr const char* kFp4 = "21 43 65 87 A9 CB ED 0F";

TEST(Published, Nvfp4) {
  const Floats want = {.5625f,  1.125f,  1.6875f,  2.25f,  3.375f,  4.5f,  6.75f,  0,
                       -.5625f, -1.125f, -1.6875f, -2.25f, -3.375f, -4.5f, -6.75f, 0};
  Module modelopt;
  modelopt.add("weight", FileDType::kU8, {1, 8}, hex(kFp4))
      .add("weight_scale", FileDType::kF8E4M3, {1, 1}, hex("39"))
      .add("weight_scale_2", FileDType::kF32, {}, Floats{1.0f})
      .add("input_scale", FileDType::kF32, {}, Floats{3.0f});
  EXPECT_EQ(modelopt.read(1, 16), want);
  EXPECT_EQ(modelopt.format, "NVFP4");
  // compressed-tensors stores the reciprocal.
  Module packed;
  packed.add("weight_packed", FileDType::kU8, {1, 8}, hex(kFp4))
      .add("weight_scale", FileDType::kF8E4M3, {1, 1}, hex("39"))
      .add("weight_global_scale", FileDType::kF32, {1}, Floats{2.0f});
  const Floats halved = packed.read(1, 16);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(halved[i], want[i] / 2) << i;
}

TEST(Published, Mxfp4) {
  Module module;
  module.add("weight_packed", FileDType::kU8, {1, 16}, join({hex("21"), times(15, "00")}))
      .add("weight_scale", FileDType::kU8, {1, 1}, hex("80"));
  const Floats got = module.read(1, 32);
  EXPECT_EQ(module.format, "MXFP4");
  EXPECT_EQ(got[0], 1.0f);
  EXPECT_EQ(got[1], 2.0f);
  EXPECT_EQ(got[2], 0.0f);
}

TEST(Published, PackQuantized) {
  Module plain;
  plain.add("weight_packed", FileDType::kI32, {1, 1}, Words{0xFEA98710u})
      .add("weight_scale", FileDType::kF32, {1, 1}, Floats{1.0f})
      .add("weight_shape", FileDType::kI64, {2}, std::vector<int64_t>{1, 8});
  EXPECT_EQ(plain.read(1, 8), (Floats{-8, -7, -1, 0, 1, 2, 6, 7}));
  // Zero points, packed along the outputs; bf16 scales; groups of 16.
  Module zeros;
  zeros.add("weight_packed", FileDType::kI32, {2, 4}, Words(8, 0x99999999u))
      .add("weight_scale", FileDType::kBF16, {2, 2},
           std::vector<uint16_t>{0x3F80, 0x4000, 0x4040, 0x4080})
      .add("weight_zero_point", FileDType::kI32, {1, 2}, Words{0x00000087u, 0x00000095u});
  const Floats got = zeros.read(2, 32);
  EXPECT_EQ(got[0], 2.0f);   // (9 - 7) * 1
  EXPECT_EQ(got[16], 8.0f);  // (9 - 5) * 2
  EXPECT_EQ(got[32], 3.0f);  // (9 - 8) * 3
  EXPECT_EQ(got[48], 0.0f);  // (9 - 9) * 4
  Module bytes;
  bytes.add("weight_packed", FileDType::kI32, {1, 1}, Words{0xFF817F00u})
      .add("weight_scale", FileDType::kF32, {1, 1}, Floats{.5f});
  EXPECT_EQ(bytes.read(1, 4), (Floats{-64, -.5f, .5f, 63.5f}));
}

TEST(Published, Int8AndFp8) {
  Module int8;
  int8.add("weight", FileDType::kI8, {2, 1}, hex("F0 F0"))
      .add("weight_scale", FileDType::kF32, {2, 1}, Floats{.5f, 2.0f});
  EXPECT_EQ(int8.read(2, 1), (Floats{-8, -32}));
  Module rows;
  rows.add("weight", FileDType::kF8E4M3, {2, 1}, hex("39 B9"))
      .add("weight_scale", FileDType::kBF16, {2, 1}, std::vector<uint16_t>{0x4000, 0x3F80});
  EXPECT_EQ(rows.read(2, 1), (Floats{2.25f, -1.125f}));
  Module one;
  one.add("weight", FileDType::kF8E4M3, {2, 1}, hex("39 01"))
      .add("weight_scale", FileDType::kF32, {}, Floats{2.0f})
      .add("input_scale", FileDType::kF32, {}, Floats{1.0f});
  EXPECT_EQ(one.read(2, 1), (Floats{2.25f, 0x1p-8f}));
  for (const char* name : {"weight_scale", "weight_scale_inv"}) {
    Module blocks;
    blocks.add("weight", FileDType::kF8E4M3, {129, 130}, times(129 * 130, "38"))
        .add(name, FileDType::kF32, {2, 2}, Floats{1, 2, 3, 4});
    const Floats got = blocks.read(129, 130);
    EXPECT_EQ(got[127], 1.0f);
    EXPECT_EQ(got[128], 2.0f);
    EXPECT_EQ(got[128 * 130], 3.0f);
    EXPECT_EQ(got[128 * 130 + 129], 4.0f);
  }
}

TEST(Published, Gptq) {
  const Words word(8, 0x76543210u);  // of each output the same
  Module module;
  module.add("qweight", FileDType::kI32, {1, 8}, word)
      .add("qzeros", FileDType::kI32, {1, 1}, Words{0x88888888u})
      .add("scales", FileDType::kF32, {1, 8}, Floats(8, .5f))
      .add("g_idx", FileDType::kI32, {8}, Words(8, 0));
  const Floats symmetric = module.read(8, 8);
  const Floats want = {-4, -3.5f, -3, -2.5f, -2, -1.5f, -1, -.5f};
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(symmetric[i], want[i % 8]) << i;
  // Without sym the zero is what is stored, and one more in the older format.
  EXPECT_EQ(module.read(8, 8, {.gptq_symmetric = false, .gptq_zero_offset = 0})[7], -.5f);
  EXPECT_EQ(module.read(8, 8, {.gptq_symmetric = false})[7], -1.0f);
}

TEST(Published, Awq) {
  Module module;
  module.add("qweight", FileDType::kI32, {2, 1}, Words{0x75316420u, 0x75316420u})
      .add("qzeros", FileDType::kI32, {1, 1}, Words{0x00000001u})
      .add("scales", FileDType::kF32, {1, 8}, Floats(8, 2.0f));
  const Floats got = module.read(8, 2);
  for (int o = 0; o < 8; ++o) {
    EXPECT_EQ(got[static_cast<size_t>(2 * o)], 2.0f * static_cast<float>(o - (o == 0 ? 1 : 0)))
        << o;
  }
}

TEST(Published, Refusals) {
  Module reordered;
  reordered.add("qweight", FileDType::kI32, {4, 8}, Words(32, 0))
      .add("scales", FileDType::kF32, {2, 8}, Floats(16, 1.0f))
      .add("g_idx", FileDType::kI32, {32}, Words(32, 1));
  EXPECT_NE(reordered.refusal(8, 32).find("act-order"), std::string::npos);
  Module bits;
  bits.add("weight", FileDType::kU8, {16, 1}, times(16, "70"))
      .add("weight.absmax", FileDType::kF32, {1}, Floats{2.0f});
  EXPECT_NE(bits.refusal(1, 32).find("bitsandbytes"), std::string::npos);
  Module mlx;
  mlx.add("weight", FileDType::kU32, {1, 4}, Words(4, 0));
  EXPECT_NE(mlx.refusal(1, 32).find("MLX"), std::string::npos);
  Module nan;
  nan.add("weight", FileDType::kF8E4M3, {1, 2}, hex("00 FF"))
      .add("weight_scale", FileDType::kF32, {}, Floats{1.0f});
  EXPECT_NE(nan.refusal(1, 2).find("NaN"), std::string::npos);
  Module lone;
  lone.add("weight", FileDType::kF8E4M3, {1, 2}, hex("00 00"));
  EXPECT_NE(lone.refusal(1, 2).find("weight_scale"), std::string::npos);
  Module shape;
  shape.add("weight_packed", FileDType::kI32, {2, 3}, Words(6, 0))
      .add("weight_scale", FileDType::kF32, {2, 1}, Floats(2, 1.0f));
  EXPECT_NE(shape.refusal(2, 32).find("[2, 4]"), std::string::npos);
}

// Plain numbers, and modules without tensors, are no quantised ones.
TEST(Published, LeavesPlainNumbersAlone) {
  Module module;
  module.add("weight", FileDType::kF32, {1, 2}, Floats{1, 2});
  EXPECT_EQ(module.refusal(1, 2), "plain");
}

}  // namespace
}  // namespace replayssm
