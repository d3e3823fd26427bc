// What converters change, undone: by small files whose rows are numbered.
#include "model/formats/gguf_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "../model/testing.h"
#include "model/formats/gguf_tokenizer.h"
#include "model/formats/gguf_writer.h"

namespace replayssm {
namespace {

constexpr int64_t kHidden = 32, kExperts = 3, kFf = 4, kKey = 2, kValue = 4, kDim = 2;

// Row r of a tensor holds 10 * r everywhere.
std::function<void(std::byte*)> numbered(int64_t rows, int64_t cols) {
  return [rows, cols](std::byte* out) {
    std::vector<float> values;
    for (int64_t r = 0; r < rows; ++r) {
      values.insert(values.end(), static_cast<size_t>(cols), 10.0f * static_cast<float>(r));
    }
    std::memcpy(out, values.data(), values.size() * 4);
  };
}

// One GDN layer with experts and one block of multi-token prediction.
void write(const std::string& path, const std::string& arch, bool both_in_one) {
  GgufWriter writer;
  const auto size = [&](const char* name, uint32_t value) { writer.u32(arch + "." + name, value); };
  writer.text("general.architecture", arch);
  size("block_count", 2);
  size("nextn_predict_layers", 1);
  size("context_length", 64);
  size("embedding_length", kHidden);
  size("attention.head_count", 2);
  size("attention.head_count_kv", 1);
  size("attention.key_length", 16);
  writer.f32(arch + ".attention.layer_norm_rms_epsilon", 1e-6f);
  size("ssm.conv_kernel", 4);
  size("ssm.state_size", kDim);
  size("ssm.group_count", kKey);
  size("ssm.time_step_rank", kValue);
  size("ssm.inner_size", kValue * kDim);
  size("expert_count", kExperts);
  size("expert_used_count", 2);
  size("expert_feed_forward_length", kFf);
  size("expert_shared_feed_forward_length", kFf);
  const auto tensor = [&](const std::string& name, std::vector<int64_t> shape) {
    const int64_t cols = shape.size() == 1 ? 1 : shape.back();
    int64_t n = 1;
    for (const int64_t dim : shape) n *= dim;
    writer.tensor(name, BlockType::kF32, shape, numbered(n / cols, cols));
  };
  tensor("token_embd.weight", {5, kHidden});
  tensor("output_norm.weight", {kHidden});
  tensor("blk.0.attn_qkv.weight", {2 * kKey * kDim + kValue * kDim, kHidden});
  tensor("blk.0.attn_gate.weight", {kValue * kDim, kHidden});
  tensor("blk.0.ssm_conv1d.weight", {2 * kKey * kDim + kValue * kDim, 4});
  writer.tensor("blk.0.ssm_a", BlockType::kF32, {kValue}, [](std::byte* out) {
    const float stored[] = {-1.0f, -std::exp(1.0f), -std::exp(2.0f), -std::exp(3.0f)};
    std::memcpy(out, stored, sizeof(stored));
  });
  if (arch == "qwen3next") {
    tensor("blk.0.ssm_ba.weight", {2 * kValue, kHidden});
  } else {
    tensor("blk.0.ssm_beta.weight", {kValue, kHidden});
  }
  if (both_in_one) {
    tensor("blk.0.ffn_gate_up_exps.weight", {kExperts, 2 * kFf, kHidden});
  } else {
    tensor("blk.0.ffn_gate_exps.weight", {kExperts, kFf, kHidden});
    tensor("blk.0.ffn_up_exps.weight", {kExperts, kFf, kHidden});
  }
  tensor("blk.0.ffn_down_exps.weight", {kExperts, kHidden, kFf});
  tensor("blk.0.ffn_gate_inp.weight", {kExperts, kHidden});
  tensor("blk.0.ffn_gate_inp_shexp.weight", {kHidden});
  tensor("blk.1.nextn.eh_proj.weight", {2, 2});
  writer.write(path);
}

// The rows of the tensor that make up the matrix.
std::vector<int64_t> rows_of(GgufModel& model, const std::string& name, int64_t rows,
                             int64_t cols = kHidden) {
  Buffer storage;
  const ops::ConstMatrix matrix = model.matrix(name, rows, cols).dense(storage);
  std::vector<int64_t> out;
  for (int64_t r = 0; r < rows; ++r) {
    float value;
    std::memcpy(&value, matrix.at(r, cols - 1), 4);
    out.push_back(static_cast<int64_t>(value) / 10);
  }
  return out;
}

using Rows = std::vector<int64_t>;
constexpr const char* kGdn = "model.layers.0.linear_attn.";
constexpr const char* kMoe = "model.layers.0.mlp.";

TEST(GgufModel, PutsValueHeadsBack) {
  TempFolder folder;
  write(folder.file("m.gguf"), "qwen35moe", false);
  GgufModel model = GgufModel::open(folder.file("m.gguf"));
  EXPECT_EQ(model.description().spec.layers.size(), 1u);
  const std::string at = kGdn;
  // Heads 0, 2 of the file are of key head 0; 1, 3 of key head 1.
  EXPECT_EQ(rows_of(model, at + "in_proj_z.weight", 8), (Rows{0, 1, 4, 5, 2, 3, 6, 7}));
  EXPECT_EQ(rows_of(model, at + "in_proj_qkv.weight", 16),
            (Rows{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15}));
  EXPECT_EQ(rows_of(model, at + "in_proj_b.weight", 4), (Rows{0, 2, 1, 3}));
  const auto conv = model.conv(at + "conv1d.weight", 16, 4);
  EXPECT_EQ(conv[4 * 10], 120.0f);
  const auto a = model.vector(at + "A_log", 4);
  const float want[] = {0.0f, 2.0f, 1.0f, 3.0f};
  for (size_t h = 0; h < 4; ++h) EXPECT_NEAR(a[h], want[h], 1e-6f);
  // One was added to a norm.
  EXPECT_FALSE(model.description().spec.zero_centred_norms);
  EXPECT_EQ(model.vector("model.norm.weight", kHidden)[2], 20.0f);
}

TEST(GgufModel, Qwen3NextKeepsItsHeadsAndPairs) {
  TempFolder folder;
  write(folder.file("m.gguf"), "qwen3next", false);
  GgufModel model = GgufModel::open(folder.file("m.gguf"));
  const std::string at = kGdn;
  EXPECT_EQ(rows_of(model, at + "in_proj_z.weight", 8), (Rows{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(rows_of(model, at + "in_proj_b.weight", 4), (Rows{0, 1, 4, 5}));
  EXPECT_EQ(rows_of(model, at + "in_proj_a.weight", 4), (Rows{2, 3, 6, 7}));
  const auto a = model.vector(at + "A_log", 4);
  for (size_t h = 0; h < 4; ++h) EXPECT_NEAR(a[h], static_cast<float>(h), 1e-6f);
}

TEST(GgufModel, ExpertsOneByOne) {
  TempFolder folder;
  const std::string at = kMoe;
  for (const bool both : {false, true}) {
    write(folder.file("m.gguf"), "qwen35moe", both);
    GgufModel model = GgufModel::open(folder.file("m.gguf"));
    const int64_t each = both ? 2 * kFf : kFf;
    EXPECT_EQ(rows_of(model, at + "experts.2.gate_proj.weight", kFf)[1], 2 * each + 1);
    EXPECT_EQ(rows_of(model, at + "experts.1.up_proj.weight", kFf)[0], each + (both ? kFf : 0));
    EXPECT_EQ(rows_of(model, at + "experts.1.down_proj.weight", kHidden, kFf)[3], kHidden + 3);
    EXPECT_EQ(rows_of(model, at + "shared_expert_gate.weight", 1).size(), 1u);
    EXPECT_THROW(model.matrix(at + "experts.3.up_proj.weight", kFf, kHidden), Error);
    EXPECT_THROW(model.matrix(at + "experts.0.up_proj.weight", kFf + 1, kHidden), Error);
    EXPECT_FALSE(model.has(at + "experts.gate_up_proj"));
    EXPECT_FALSE(model.has(at + "experts.down_proj"));
    EXPECT_TRUE(model.has(at + "experts.2.down_proj.weight"));
    // The block of multi-token prediction is known and not run.
    EXPECT_TRUE(model.is_skipped("blk.1.nextn.eh_proj.weight"));
    EXPECT_FALSE(model.is_skipped("blk.0.ssm_a"));
  }
}

TEST(GgufModel, RefusesOtherArchitectures) {
  TempFolder folder;
  GgufWriter writer;
  writer.text("general.architecture", "llama");
  writer.write(folder.file("m.gguf"));
  try {
    GgufModel::open(folder.file("m.gguf"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'llama'"), std::string::npos);
  }
}

TEST(GgufModel, RefusesTokenizersThatItDoesNotKnow) {
  TempFolder folder;
  const auto refusal = [&](const char* model, const char* pre) -> std::string {
    GgufWriter writer;
    writer.text("tokenizer.ggml.model", model);
    writer.text("tokenizer.ggml.pre", pre);
    writer.texts("tokenizer.ggml.tokens", {"a"});
    writer.texts("tokenizer.ggml.merges", {});
    writer.write(folder.file("m.gguf"));
    try {
      gguf_tokenizer_json(GgufFiles::open(folder.file("m.gguf")));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal("gpt2", "qwen35"), "");
  EXPECT_NE(refusal("gpt2", "poro-chat").find("tokenizer.ggml.pre is \"poro-chat\"; known are"),
            std::string::npos);
  EXPECT_NE(refusal("llama", "default").find("tokenizer.ggml.model is \"llama\"; only gpt2"),
            std::string::npos);
}

}  // namespace
}  // namespace replayssm
