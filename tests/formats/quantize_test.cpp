// Encoders, and whole models through `quantize` and back.
#include "model/formats/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "../model/testing.h"
#include "core/text_file.h"
#include "model/formats/encode.h"
#include "model/formats/gguf_model.h"
#include "model/formats/gguf_tokenizer.h"
#include "model/formats/published.h"
#include "model/tokenizer/tokenizer.h"

namespace replayssm {
namespace {

std::vector<float> normal(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> of(0.0f, 1.0f);
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = of(random);
  return out;
}

std::vector<float> through(BlockType type, const std::vector<float>& values) {
  const BlockShape& shape = *find_block_shape(static_cast<int32_t>(type));
  const auto n = static_cast<int64_t>(values.size());
  std::vector<std::byte> bytes(static_cast<size_t>(n / shape.elements * shape.bytes));
  encode_blocks(type, values.data(), n, bytes.data());
  std::vector<float> out(values.size());
  decode_blocks(type, bytes.data(), n, out.data());
  return out;
}

double nmse(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0.0, power = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double e = static_cast<double>(got[i]) - want[i];
    error += e * e;
    power += static_cast<double>(want[i]) * want[i];
  }
  return error / power;
}

// Uniform steps d lose d^2 / 12: of normal numbers about so much.
TEST(Encode, RoundsToTheNearest) {
  const std::vector<float> values = normal(1 << 14, 1);
  EXPECT_LT(nmse(through(BlockType::kQ8_0, values), values), 4e-5);
  EXPECT_LT(nmse(through(BlockType::kQ4_K, values), values), 7e-3);
  EXPECT_LT(nmse(through(BlockType::kQ4_0, values), values), 1e-2);
  EXPECT_EQ(through(BlockType::kF32, values), values);
  const std::vector<float> zeros(256);
  for (const BlockType type : {BlockType::kQ8_0, BlockType::kQ4_K, BlockType::kQ4_0}) {
    EXPECT_EQ(through(type, zeros), zeros);
    // What is already of the format stays.
    const std::vector<float> once = through(type, values);
    EXPECT_LT(nmse(through(type, once), once), 1e-5);
  }
}

TEST(Encode, E4m3) {
  for (int code = 0; code < 0x7f; ++code) {
    const float value = ops::e4m3_value(static_cast<uint8_t>(code));
    EXPECT_EQ(e4m3_nearest(value), code);
    if (code == 0x7e) continue;
    const float next = ops::e4m3_value(static_cast<uint8_t>(code + 1));
    EXPECT_EQ(e4m3_nearest(value + 0.4f * (next - value)), code);
    EXPECT_EQ(e4m3_nearest(value + 0.6f * (next - value)), code + 1);
  }
  EXPECT_EQ(e4m3_nearest(1e9f), 0x7e);
}

std::string demo(const char* name) { return std::string(REPLAYSSM_SOURCE_DIR) + "/models/" + name; }

std::vector<float> rows_of(const GgufMatrix& matrix) {
  std::vector<float> out(static_cast<size_t>(matrix.rows * matrix.cols));
  if (!matrix.quantised()) {
    Buffer storage;
    const ops::ConstMatrix dense = matrix.dense(storage);
    decode_blocks(matrix.tensor->type, static_cast<const std::byte*>(dense.data),
                  matrix.rows * matrix.cols, out.data());
    return out;
  }
  const ops::QuantMatrix quant = matrix.quant();
  ops::QuantRowBuffer buffer(quant.format, quant.cols);
  for (int64_t r = 0; r < quant.rows; ++r) {
    quant.read(r, buffer.row());
    ops::dequantise_row(quant.format, quant.cols, buffer.row(), out.data() + r * quant.cols);
  }
  return out;
}

// The inputs of out_proj in the model's order.
std::vector<float> untiled(const std::vector<float>& rows, int64_t cols, const GdnSpec& gdn) {
  std::vector<float> out(rows.size());
  const int64_t share = gdn.n_value_heads / gdn.n_key_heads;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto col = static_cast<int64_t>(i) % cols;
    const int64_t at = col / gdn.value_dim;
    const int64_t head = at % gdn.n_key_heads * share + at / gdn.n_key_heads;
    out[i - static_cast<size_t>(col) + static_cast<size_t>(head * gdn.value_dim) +
        static_cast<size_t>(col % gdn.value_dim)] = rows[i];
  }
  return out;
}

// Every tensor of the folder comes back from the GGUF under its own name, near what it was.
void expect_same_model(const std::string& folder, const std::string& path, double most) {
  const ModelDescription want = describe_model(folder);
  GgufModel got = GgufModel::open(path);
  const ModelSpec& spec = got.description().spec;
  EXPECT_EQ(spec.hidden, want.spec.hidden);
  EXPECT_EQ(spec.vocab, want.spec.vocab);
  EXPECT_EQ(spec.max_positions, want.spec.max_positions);
  EXPECT_EQ(spec.norm_eps, want.spec.norm_eps);
  EXPECT_EQ(spec.tied, want.spec.tied);
  EXPECT_EQ(spec.eos_ids, want.spec.eos_ids);
  ASSERT_EQ(spec.layers.size(), want.spec.layers.size());
  const GdnSpec* gdn = nullptr;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    for (size_t j = 0; j < spec.layers[i].mixers.size(); ++j) {
      const MixerSpec& mixer = spec.layers[i].mixers[j];
      EXPECT_EQ(mixer.index(), want.spec.layers[i].mixers[j].index()) << i;
      if (const auto* a = std::get_if<AttentionSpec>(&mixer)) {
        const auto& b = std::get<AttentionSpec>(want.spec.layers[i].mixers[j]);
        EXPECT_EQ(a->rotary_dims, b.rotary_dims);
        EXPECT_EQ(a->rope_theta, b.rope_theta);
        EXPECT_EQ(a->n_kv_heads, b.n_kv_heads);
      }
      if (const auto* g = std::get_if<GdnSpec>(&mixer)) gdn = g;
    }
  }
  const auto files = TensorFiles::open_folder(folder);
  int n_read = 0;
  for (const TensorView& tensor : files.tensors()) {
    SCOPED_TRACE(tensor.name);
    if (tensor.name.starts_with("mtp.")) continue;
    const std::vector<float> source = read_fp32(tensor);
    ++n_read;
    if (tensor.shape.size() == 1) {
      const std::vector<float> numbers = got.vector(tensor.name, tensor.shape[0]);
      // Qwen's norms hold 1 + w.
      const bool plus_one = want.spec.zero_centred_norms && tensor.name.ends_with("norm.weight") &&
                            !tensor.name.ends_with("linear_attn.norm.weight");
      for (size_t i = 0; i < source.size(); ++i) {
        ASSERT_EQ(numbers[i], source[i] + (plus_one ? 1.0f : 0.0f));
      }
    } else if (tensor.shape.size() == 3) {
      EXPECT_EQ(got.conv(tensor.name, tensor.shape[0], tensor.shape[2]), source);
    } else {
      const GgufMatrix matrix = got.matrix(tensor.name, tensor.shape[0], tensor.shape[1]);
      std::vector<float> rows = rows_of(matrix);
      if (matrix.quantised() && !matrix.inputs.empty()) rows = untiled(rows, matrix.cols, *gdn);
      EXPECT_LT(nmse(rows, source), most);
      EXPECT_EQ(!matrix.inputs.empty(), tensor.name.ends_with("linear_attn.out_proj.weight"));
    }
  }
  EXPECT_GT(n_read, 10);
  EXPECT_EQ(got.unread(), std::vector<std::string>{});

  const auto ours = model::Tokenizer::parse(gguf_tokenizer_json(got.files()), path);
  const auto theirs = model::Tokenizer::load(folder + "/tokenizer.json");
  EXPECT_EQ(ours.vocab_size(), theirs.vocab_size());
  for (const char* text :
       {"The year 2026, isn't it?\n\n  x = f(y);", "<|im_start|>user\nnaïve e\u0301 中文"}) {
    EXPECT_EQ(ours.encode(text), theirs.encode(text));
  }
  EXPECT_EQ(gguf_chat_template(got.files()), read_text_file(folder + "/chat_template.jinja"));
}

TEST(Quantize, GgufThereAndBack) {
  TempFolder out;
  for (const char* name : {"demo-gdn", "demo-mamba2"}) {
    SCOPED_TRACE(name);
    quantize_model(demo(name), QuantTarget::kQ8_0, out.file("q8.gguf"));
    expect_same_model(demo(name), out.file("q8.gguf"), 1e-4);
    quantize_model(demo(name), QuantTarget::kQ4_K, out.file("q4.gguf"));
    expect_same_model(demo(name), out.file("q4.gguf"), 1e-2);
  }
}

TEST(Quantize, Nvfp4ThereAndBack) {
  TempFolder out;
  quantize_model(demo("demo-gdn"), QuantTarget::kNvfp4, out.file("nvfp4"));
  const auto source = TensorFiles::open_folder(demo("demo-gdn"));
  const auto files = TensorFiles::open_folder(out.file("nvfp4"));
  int n_quantised = 0;
  for (const TensorView& tensor : source.tensors()) {
    if (tensor.shape.size() != 2 || !tensor.name.ends_with(".weight")) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - 7);
    const auto stored = find_quantised(files, module, tensor.shape[0], tensor.shape[1], {});
    if (!stored) continue;
    ++n_quantised;
    std::vector<float> rows(static_cast<size_t>(tensor.n_elements()));
    ops::QuantRowBuffer buffer(stored->matrix.format, tensor.shape[1]);
    for (int64_t r = 0; r < tensor.shape[0]; ++r) {
      stored->matrix.read(r, buffer.row());
      ops::dequantise_row(stored->matrix.format, tensor.shape[1], buffer.row(),
                          rows.data() + r * tensor.shape[1]);
    }
    EXPECT_LT(nmse(rows, read_fp32(tensor)), 1.2e-2) << tensor.name;
  }
  EXPECT_GT(n_quantised, 30);
  EXPECT_THROW(quantize_model(demo("demo-gdn"), QuantTarget::kNvfp4, demo("demo-gdn")), Error);
}

}  // namespace
}  // namespace replayssm
