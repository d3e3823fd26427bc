// GGUF files that run: plain ones as the folder that they were made of, those of few bits as their
// dequantised twin.
#include <algorithm>
#include <cmath>

#include "edited_model.h"
#include "engine.h"
#include "model/formats/blocks.h"
#include "model/formats/quantize.h"
#include "model/model_source.h"
#include "testing.h"

namespace replayssm {
namespace {

std::vector<float> logits_of(const std::string& path, size_t prefill, const ModelOptions& options) {
  Engine engine(path, options);
  return engine.logits({3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3}, prefill, 4);
}

double nmse(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  return error / size;
}

ModelOptions with_activation(DType activation) {
  ModelOptions options;
  options.activation = activation;
  options.checkpoint = options.ring = DType::kF32;
  return options;
}

TEST(GgufRuns, PlainFilesHaveTheBitsOfTheirFolder) {
  const TempFolder folder;
  const std::string file = folder.file("m.gguf");
  for (const char* name :
       {"qwen3_5_tied", "qwen3_5_untied", "qwen3_5_vlm", "qwen3_5_bf16", "qwen3_5_moe",
        "qwen3_5_moe_fused", "kernels_qwen3_5_moe", "qwen3_next", "kernels_qwen3_next",
        "nemotron_h_pattern", "nemotron_h_bf16", "nemotron_h_moe", "nemotron_h_latent"}) {
    SCOPED_TRACE(name);
    quantize_model(fixture(name), QuantTarget::kNone, file);
    const auto want = logits_of(fixture(name), 1, {});
    const auto got = logits_of(file, 1, {});
    const SourceModel source = read_source_model(file);
    EXPECT_EQ(source.stored, Model::load(fixture(name), {})->stored());
    // A_log in fp32 below 1 comes back within a unit of the last place of what it stands for.
    if (source.stored == DType::kBF16) {
      EXPECT_EQ(got, want);
    } else {
      EXPECT_LT(nmse(got, want), 1e-12);
    }
    EXPECT_EQ(logits_of(file, 17, {}), got);
    EXPECT_EQ(weights_of(file).n_parameters, weights_of(fixture(name)).n_parameters);
  }
}

// A fixture whose matrices are what a GGUF file's are in fp32.
class Twin {
 public:
  Twin(const std::string& name, const std::string& path)
      : model_(name), source_(read_source_model(path)) {
    const auto files = open_weights(source_.description, path);
    GdnSpec gdn;
    for (const LayerSpec& layer : source_.description.spec.layers) {
      if (const auto* found = std::get_if<GdnSpec>(&layer.mixers[0])) gdn = *found;
    }
    for (const auto& [tensor_name, tensor] : std::map(model_.tensors())) {
      const size_t experts = tensor_name.rfind("experts.");
      if (tensor.shape.size() == 3 && experts != std::string::npos) {
        model_.tensors().erase(tensor_name);
        for (int64_t e = 0; e < tensor.shape[0]; ++e) {
          const std::string at = concat(tensor_name.substr(0, experts + 8), e, ".");
          if (tensor_name.ends_with("down_proj")) {
            put(*files, at + "down_proj.weight", tensor.shape[1], tensor.shape[2]);
          } else {
            put(*files, at + "gate_proj.weight", tensor.shape[1] / 2, tensor.shape[2]);
            put(*files, at + "up_proj.weight", tensor.shape[1] / 2, tensor.shape[2]);
          }
        }
      }
      if (tensor.shape.size() != 2) continue;
      const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
      const std::string module = tensor_name.substr(0, tensor_name.rfind(".in_proj_"));
      if (tensor_name.ends_with(".in_proj_qkvz.weight")) {
        model_.tensors().erase(tensor_name);
        put(*files, module + ".in_proj_qkv.weight", gdn.conv_channels(), cols);
        put(*files, module + ".in_proj_z.weight", gdn.value_size(), cols);
      } else if (tensor_name.ends_with(".in_proj_ba.weight")) {
        model_.tensors().erase(tensor_name);
        put(*files, module + ".in_proj_b.weight", rows / 2, cols);
        put(*files, module + ".in_proj_a.weight", rows / 2, cols);
      } else {
        put(*files, tensor_name, rows, cols);
      }
    }
    // The family whose projections have these names.
    const size_t type = model_.config().find("\"qwen3_next\"");
    if (type != std::string::npos) model_.config().replace(type, 12, "\"qwen3_5_moe_text\"");
  }
  const std::string& folder() { return model_.write(); }

 private:
  void put(WeightFiles& files, const std::string& name, int64_t rows, int64_t cols) {
    const ops::ConstMatrix matrix = files.rows({name, rows, cols, 0, rows}, DType::kF32);
    auto& kept =
        kept_.emplace_back(std::make_unique<std::vector<float>>(static_cast<size_t>(rows * cols)));
    const BlockType type = matrix.dtype == DType::kF32   ? BlockType::kF32
                           : matrix.dtype == DType::kF16 ? BlockType::kF16
                                                         : BlockType::kBF16;
    decode_blocks(type, static_cast<const std::byte*>(matrix.data), rows * cols, kept->data());
    model_.tensors()[name] = {name, FileDType::kF32, {rows, cols}, kept->data()};
  }

  EditedModel model_;
  SourceModel source_;
  std::vector<std::unique_ptr<std::vector<float>>> kept_;
};

void expect_as_twin(const std::string& name, const std::string& file, double from_folder) {
  Twin twin(name, file);
  const std::string folder = twin.folder();
  const ModelOptions exact = with_activation(DType::kF32);
  const ModelOptions half = with_activation(DType::kBF16);
  const auto want = logits_of(folder, 1, exact);
  const auto got = logits_of(file, 1, exact);
  EXPECT_LT(nmse(got, want), 1e-9);
  EXPECT_LT(nmse(logits_of(file, 1, half), logits_of(folder, 1, half)), 1e-4);
  EXPECT_LT(nmse(got, logits_of(fixture(name), 1, exact)), from_folder);
  EXPECT_EQ(logits_of(file, 17, exact), got);
  // What a load takes is known before.
  const LoadedWeightsCpu loaded = weights_of(file);
  EXPECT_EQ(weight_bytes_cpu(*Model::load(file, {})), loaded.bytes);
  EXPECT_LT(loaded.bytes, weights_of(folder).bytes);
}

TEST(GgufRuns, FewBitsAreWhatTheySay) {
  const TempFolder folder;
  const std::string file = folder.file("m.gguf");
  for (const char* name :
       {"qwen3_5_untied", "kernels_qwen3_5_moe", "qwen3_5_tied", "qwen3_next", "kernels_qwen3_next",
        "nemotron_h_pattern", "nemotron_h_moe", "kernels_nemotron_h_latent"}) {
    SCOPED_TRACE(name);
    quantize_model(fixture(name), QuantTarget::kQ8_0, file);
    expect_as_twin(name, file, 2e-2);  // a router may choose another expert
    quantize_model(fixture(name), QuantTarget::kQ4_K, file);
    expect_as_twin(name, file, 3e-2);
  }
}

// Value heads, norms and A_log by the rules of llama.cpp's converter, blocks by the `gguf` package
// (tools/fixtures/make_gguf_golden.py).
TEST(GgufRuns, AFileByTheGgufPackage) {
  expect_as_twin("kernels_qwen3_5_moe",
                 std::string(REPLAYSSM_SOURCE_DIR) + "/tests/data/gguf/qwen35moe.gguf", 2e-2);
}

TEST(GgufRuns, RefusesInOneLine) {
  const TempFolder folder;
  const std::string file = folder.file("m.gguf");
  quantize_model(fixture("qwen3_5_untied"), QuantTarget::kNone, file);
  expect_refusal({file, "quantize reads"}, [&] { quantize_model(file, QuantTarget::kQ8_0, file); });
  ModelOptions options;
  options.mtp = true;
  expect_refusal({file, "multi-token-prediction"}, [&] { Model::load(file, options); });
  std::string bytes = read_text(file);
  const auto edit = [&](const std::string& from, const std::string& to) {
    std::string edited = bytes;
    const size_t at = edited.find(from);
    ASSERT_NE(at, std::string::npos);
    edited.replace(at, from.size(), to);
    write_text(file, edited);
  };
  edit("blk.0.ssm_dt.bias", "blk.0.ssm_xx.bias");
  expect_refusal({file, "'blk.0.ssm_dt.bias'"}, [&] { weights_of(file); });
  edit("blk.3.ffn_up.weight", "blk.9.ffn_up.weight");
  expect_refusal({file, "'blk.3.ffn_up.weight'"}, [&] { weights_of(file); });
  write_text(file, bytes.substr(0, bytes.size() - 4000));
  expect_refusal({file}, [&] { Model::load(file, {}); });
}

}  // namespace
}  // namespace replayssm
