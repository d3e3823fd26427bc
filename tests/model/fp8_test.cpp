// FP8 weights: what the bytes mean, and files that are refused.
#include "model/fp8.h"

#include <cmath>

#include "edited_model.h"
#include "replay/convert.h"

namespace replayssm {
namespace {

TEST(Fp8, ValuesOfBits) {
  EXPECT_EQ(e4m3_to_float(0x00), 0.0f);
  EXPECT_TRUE(std::signbit(e4m3_to_float(0x80)));
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_to_float(0x07), 7 * 0x1p-9f);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_float(0xbc), -1.5f);
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xff)));
  for (int bits = 1; bits < 0x7f; ++bits) {
    const auto b = static_cast<uint8_t>(bits);
    EXPECT_GT(e4m3_to_float(b), e4m3_to_float(static_cast<uint8_t>(b - 1)));
    EXPECT_EQ(e4m3_to_float(b | 0x80), -e4m3_to_float(b));
  }
}

// Every element by its own block's scale, in fp32, rounded once.
TEST(Fp8, WidensByBlocksAndByTensor) {
  const int64_t rows = 130, cols = 257;
  const TempFolder folder;
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 % 0x7f);
  std::vector<float> scales;
  for (int i = 0; i < 6; ++i) scales.push_back(0.001f + 0.37f * static_cast<float>(i));
  const float one = 0.0123f, input = 0.25f;
  write_safetensors(
      folder.file("f"),
      std::vector<TensorToWrite>{{"a.weight", FileDType::kF8E4M3, {rows, cols}, bytes.data()},
                                 {"a.weight_scale_inv", FileDType::kF32, {2, 3}, scales.data()},
                                 {"b.weight", FileDType::kF8E4M3, {rows, cols}, bytes.data()},
                                 {"b.weight_scale", FileDType::kF32, {}, &one},
                                 {"b.input_scale", FileDType::kF32, {}, &input}});
  const TensorFiles files = TensorFiles::open_file(folder.file("f"));
  const Fp8Matrix a = read_fp8(files, files.at("a.weight"));
  const Fp8Matrix b = read_fp8(files, files.at("b.weight"));
  EXPECT_TRUE(a.blocks && !b.blocks && !a.input_scale);
  EXPECT_EQ(b.input_scale, 0.25f);
  std::vector<float> wide(bytes.size());
  std::vector<uint16_t> half(bytes.size());
  for (const Fp8Matrix* matrix : {&a, &b}) {
    widen_fp8(*matrix, DType::kF32, wide.data());
    widen_fp8(*matrix, DType::kBF16, half.data());
    for (int64_t i = 0; i < rows * cols; ++i) {
      const size_t at = static_cast<size_t>(i);
      const int64_t block = i / cols / 128 * 3 + i % cols / 128;
      const float scale = matrix == &a ? scales[static_cast<size_t>(block)] : one;
      ASSERT_EQ(wide[at], e4m3_to_float(bytes[at]) * scale);
      ASSERT_EQ(half[at], float_to_bf16(wide[at]));
    }
  }
}

TEST(Fp8, Refusals) {
  const std::string in = "model.layers.0.linear_attn.in_proj_qkv.weight";
  EditedModel qwen("qwen3_5_fp8");
  auto& scale = qwen.tensors().at(in + "_scale_inv");
  EXPECT_EQ(scale.shape, (std::vector<int64_t>{2, 2}));
  scale.shape = {4, 1};
  qwen.expect_refused({"model.safetensors", in + "_scale_inv", "[4, 1]", "[2, 2]"});
  scale.shape = {2, 2};
  const float bad[] = {1.0f, NAN, 1.0f, 1.0f};
  scale.dtype = FileDType::kF32;
  scale.data = bad;
  qwen.expect_refused({in + "_scale_inv", "holds the scale nan"});
  scale.dtype = FileDType::kI32;
  qwen.expect_refused({in + "_scale_inv", "I32"});
  qwen.tensors().erase(in + "_scale_inv");
  qwen.expect_refused({"'" + in + "'", "F8_E4M3", "_scale"});

  const std::string up = "backbone.layers.1.mixer.experts.3.up_proj.";
  EditedModel nemotron("nemotron_h_fp8");
  HostArena memory;
  EXPECT_EQ(load_weights_cpu(*Model::load(nemotron.write(), {}), memory).skipped.size(),
            2u);  // of the KV cache
  const float two[] = {1.0f, -2.0f};
  nemotron.tensors()[up + "weight_scale"].shape = {2};
  nemotron.tensors()[up + "weight_scale"].data = two;
  nemotron.expect_refused({up + "weight_scale", "[2]"});
  nemotron.tensors()[up + "weight_scale"].shape = {1};
  nemotron.tensors()[up + "weight_scale"].data = two + 1;
  nemotron.expect_refused({up + "weight_scale", "the scale -2"});
  // scales without FP8 weights have no place
  EditedModel plain("nemotron_h_bf16");
  plain.tensors()["backbone.layers.0.mixer.in_proj.weight_scale"] = {
      "backbone.layers.0.mixer.in_proj.weight_scale", FileDType::kF32, {1}, two};
  plain.expect_refused({"in_proj.weight_scale", "no place"});
  // only matrices can be FP8
  EditedModel vector("nemotron_h_fp8");
  vector.tensors()["backbone.norm_f.weight"].dtype = FileDType::kF8E4M3;
  vector.expect_refused({"backbone.norm_f.weight", "F8_E4M3"});
}

}  // namespace
}  // namespace replayssm
