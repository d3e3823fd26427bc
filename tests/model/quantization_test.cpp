// Each published format by its tensors, and one line for those that are not read.
#include "model/quantization.h"

#include "edited_model.h"
#include "testing.h"

namespace replayssm {
namespace {

// A file of tensors without values.
class Tensors {
 public:
  void add(const std::string& name, FileDType dtype, const std::vector<int64_t>& shape) {
    int64_t n = file_dtype_bytes(dtype);
    for (const int64_t dim : shape) n *= dim;
    data_.push_back(std::vector<std::byte>(static_cast<size_t>(n)));
    list_.push_back({name, dtype, shape, data_.back().data()});
  }
  void fill(const std::vector<int32_t>& values) {
    std::memcpy(data_.back().data(), values.data(), values.size() * sizeof(int32_t));
  }
  void fill(const std::vector<int64_t>& values) {
    std::memcpy(data_.back().data(), values.data(), values.size() * sizeof(int64_t));
  }
  ModuleFormat format_of(const std::string& module) {
    write_safetensors(folder_.file("model.safetensors"), list_);
    files_.push_back(TensorFiles::open_folder(folder_.path()));
    const auto format = module_format(files_.back(), module);
    EXPECT_TRUE(format.has_value()) << module;
    return format.value_or(ModuleFormat());
  }

 private:
  TempFolder folder_;
  std::vector<std::vector<std::byte>> data_;
  std::vector<TensorToWrite> list_;
  std::vector<TensorFiles> files_;
};

void expect_format(const ModuleFormat& got, WeightFormat format, int32_t bits, int64_t group) {
  EXPECT_EQ(format_name(got.format), format_name(format));
  EXPECT_EQ(got.bits, bits) << format_name(format);
  EXPECT_EQ(got.group, group) << format_name(format);
}

TEST(Formats, Floats) {
  for (const FileDType dtype : {FileDType::kF32, FileDType::kF16, FileDType::kBF16}) {
    Tensors file;
    file.add("a.weight", dtype, {4, 8});
    expect_format(file.format_of("a"), WeightFormat::kFloat,
                  static_cast<int32_t>(8 * file_dtype_bytes(dtype)), 0);
  }
}

TEST(Formats, Fp8) {
  struct Case {
    const char* scale;
    std::vector<int64_t> shape;
    WeightFormat format;
    int64_t group;
  };
  for (const Case& c : {Case{"weight_scale", {}, WeightFormat::kFp8Tensor, 0},
                        Case{"weight_scale", {1}, WeightFormat::kFp8Tensor, 0},
                        Case{"weight_scale", {300, 1}, WeightFormat::kFp8Channel, 0},
                        Case{"weight_scale", {300}, WeightFormat::kFp8Channel, 0},
                        Case{"weight_scale", {3, 2}, WeightFormat::kFp8Block, 128},
                        Case{"weight_scale_inv", {3, 2}, WeightFormat::kFp8Block, 128},
                        Case{"weight_scale", {2, 3}, WeightFormat::kUnknown, 0}}) {
    Tensors file;
    file.add("a.weight", FileDType::kF8E4M3, {300, 200});
    file.add(concat("a.", c.scale), FileDType::kF32, c.shape);
    expect_format(file.format_of("a"), c.format, 8, c.group);
  }
  Tensors small;  // one block: the name tells it from a scale of the whole
  small.add("a.weight", FileDType::kF8E4M3, {64, 32});
  small.add("a.weight_scale_inv", FileDType::kBF16, {1, 1});
  expect_format(small.format_of("a"), WeightFormat::kFp8Block, 8, 128);
}

TEST(Formats, FusedExperts) {
  Tensors file;
  file.add("experts.gate_up_proj", FileDType::kF8E4M3, {4, 256, 128});
  file.add("experts.gate_up_proj_scale_inv", FileDType::kF32, {4, 2, 1});
  expect_format(file.format_of("experts.gate_up_proj"), WeightFormat::kFp8Block, 8, 128);
  Tensors each;
  each.add("experts.down_proj", FileDType::kF8E4M3, {4, 256, 128});
  each.add("experts.down_proj_scale", FileDType::kF32, {4, 1, 1});
  expect_format(each.format_of("experts.down_proj"), WeightFormat::kFp8Tensor, 8, 0);
  Tensors plain;
  plain.add("experts.down_proj", FileDType::kBF16, {4, 2, 8});
  expect_format(plain.format_of("experts.down_proj"), WeightFormat::kFloat, 16, 0);
}

TEST(Formats, FourBitFloats) {
  Tensors modelopt;
  modelopt.add("a.weight", FileDType::kU8, {32, 32});
  modelopt.add("a.weight_scale", FileDType::kF8E4M3, {32, 4});
  modelopt.add("a.weight_scale_2", FileDType::kF32, {});
  modelopt.add("a.input_scale", FileDType::kF32, {});
  const ModuleFormat nvfp4 = modelopt.format_of("a");
  expect_format(nvfp4, WeightFormat::kNvfp4, 4, 16);
  EXPECT_EQ(nvfp4.outer_scale->name, "a.weight_scale_2");
  EXPECT_EQ(nvfp4.input_scale->name, "a.input_scale");
  Tensors packed;
  packed.add("a.weight_packed", FileDType::kU8, {32, 32});
  packed.add("a.weight_scale", FileDType::kF8E4M3, {32, 4});
  packed.add("a.weight_global_scale", FileDType::kF32, {1});
  expect_format(packed.format_of("a"), WeightFormat::kNvfp4Packed, 4, 16);
  for (const FileDType scale : {FileDType::kU8, FileDType::kF8E8M0}) {
    Tensors mx;
    mx.add("a.weight_packed", FileDType::kU8, {32, 32});
    mx.add("a.weight_scale", scale, {32, 2});
    expect_format(mx.format_of("a"), WeightFormat::kMxfp4, 4, 32);
  }
}

TEST(Formats, Integers) {
  Tensors packed;
  packed.add("a.weight_packed", FileDType::kI32, {32, 32});
  packed.add("a.weight_scale", FileDType::kBF16, {32, 8});
  packed.add("a.weight_zero_point", FileDType::kI32, {4, 8});
  packed.add("a.weight_shape", FileDType::kI64, {2});
  packed.fill(std::vector<int64_t>{32, 256});
  expect_format(packed.format_of("a"), WeightFormat::kPacked, 4, 32);
  Tensors channel;
  channel.add("a.weight", FileDType::kI8, {32, 64});
  channel.add("a.weight_scale", FileDType::kBF16, {32, 1});
  expect_format(channel.format_of("a"), WeightFormat::kInt8Channel, 8, 0);
  for (const bool ordered : {true, false}) {
    Tensors gptq;  // 256 inputs, 64 outputs, groups of 128
    gptq.add("a.qweight", FileDType::kI32, {32, 64});
    gptq.add("a.qzeros", FileDType::kI32, {2, 8});
    gptq.add("a.scales", FileDType::kF16, {2, 64});
    gptq.add("a.g_idx", FileDType::kI32, {256});
    std::vector<int32_t> index(256);
    for (int32_t k = 0; k < 256; ++k) index[k] = ordered ? k / 128 : k % 2;
    gptq.fill(index);
    expect_format(gptq.format_of("a"), ordered ? WeightFormat::kGptq : WeightFormat::kGptqOrdered,
                  4, 128);
  }
  Tensors awq;
  awq.add("a.qweight", FileDType::kI32, {256, 8});
  awq.add("a.qzeros", FileDType::kI32, {2, 8});
  awq.add("a.scales", FileDType::kF16, {2, 64});
  expect_format(awq.format_of("a"), WeightFormat::kAwq, 4, 128);
  Tensors mlx;
  mlx.add("a.weight", FileDType::kU32, {32, 32});
  mlx.add("a.scales", FileDType::kBF16, {32, 4});
  mlx.add("a.biases", FileDType::kBF16, {32, 4});
  expect_format(mlx.format_of("a"), WeightFormat::kMlx, 4, 64);
  Tensors nf4;
  nf4.add("a.weight", FileDType::kU8, {1024, 1});
  nf4.add("a.weight.absmax", FileDType::kU8, {32});
  nf4.add("a.weight.quant_map", FileDType::kF32, {16});
  expect_format(nf4.format_of("a"), WeightFormat::kBitsandbytes4, 4, 0);
  Tensors int8;
  int8.add("a.weight", FileDType::kI8, {32, 64});
  int8.add("a.SCB", FileDType::kF32, {32});
  expect_format(int8.format_of("a"), WeightFormat::kBitsandbytes8, 8, 0);
}

// One module of a fixture in another format: its name is told, not a shape or a missing tensor.
TEST(Formats, UnservedOnesAreNamed) {
  static const std::vector<std::byte> kZeros(1 << 20);
  const std::string module = "model.layers.1.mlp.gate_proj";
  const auto expect = [&](const std::vector<TensorToWrite>& tensors, const std::string& stated,
                          std::initializer_list<std::string> parts) {
    EditedModel model("qwen3_5_untied");
    model.tensors().erase(module + ".weight");
    for (TensorToWrite tensor : tensors) {
      tensor.name = module + tensor.name;
      tensor.data = kZeros.data();
      model.tensors()[tensor.name] = tensor;
    }
    model.config() = replaced(model.config(), "{", "{\"quantization_config\": " + stated + ", ");
    model.expect_refused(parts);
    model.expect_refused({"model.safetensors: the weights of 1 of ", "which is not supported",
                          module, "supported are F32, F16, BF16, FP8, INT8, NVFP4"});
  };
  expect({{".qweight", FileDType::kBF16, {56, 40}, nullptr}},
         R"({"quant_method": "awq", "bits": 4})", {"of an unknown format", "says awq, 4 bits"});
  expect({{".weight", FileDType::kU8, {1120, 1}, nullptr},
          {".weight.absmax", FileDType::kF32, {35}, nullptr}},
         R"({"quant_method": "bitsandbytes", "load_in_4bit": true})", {"bitsandbytes 4-bit"});
  expect({{".weight", FileDType::kU32, {56, 5}, nullptr},
          {".scales", FileDType::kBF16, {56, 1}, nullptr}},
         "null", {"MLX"});
}

TEST(Formats, WhatConfigurationsSay) {
  const TempFolder folder;
  EXPECT_EQ(stated_quantization(folder.path()), "");
  write_text(folder.file("config.json"),
             R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A4"}})");
  write_text(folder.file("hf_quant_config.json"),
             R"({"producer": {}, "quantization": {"quant_algo": "W4A16_NVFP4",
                 "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}})");
  EXPECT_EQ(stated_quantization(folder.path()), "modelopt, W4A4, W4A16_NVFP4, KV cache FP8");
}

}  // namespace
}  // namespace replayssm
