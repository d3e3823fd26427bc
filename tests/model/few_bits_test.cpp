// Models whose files keep modules in few bits: the products of the codes, not of something near.
#include <cmath>

#include "edited_model.h"
#include "engine.h"
#include "testing.h"

namespace replayssm {
namespace {

bool is_layer_matrix(const TensorToWrite& tensor) {
  return tensor.shape.size() == 2 && tensor.name.find("layers.") != tensor.name.npos &&
         tensor.name.ends_with(".weight");
}

struct Int8Module {
  std::vector<int8_t> codes;
  std::vector<float> scales;  // of the outputs
  std::vector<float> values;  // codes times scales
};

Int8Module rounded(const TensorToWrite& tensor) {
  const auto rows = static_cast<size_t>(tensor.shape[0]),
             cols = static_cast<size_t>(tensor.shape[1]);
  std::vector<float> weight(rows * cols);
  std::memcpy(weight.data(), tensor.data, weight.size() * sizeof(float));
  Int8Module out;
  for (size_t r = 0; r < rows; ++r) {
    float largest = 1e-6f;
    for (size_t c = 0; c < cols; ++c) largest = std::max(largest, std::abs(weight[r * cols + c]));
    out.scales.push_back(largest / 127);
    for (size_t c = 0; c < cols; ++c) {
      out.codes.push_back(static_cast<int8_t>(std::lround(weight[r * cols + c] / out.scales[r])));
      out.values.push_back(static_cast<float>(out.codes.back()) * out.scales[r]);
    }
  }
  return out;
}

std::vector<float> logits_of(const std::string& folder, size_t prefill) {
  Engine engine(folder, {});
  return engine.logits({3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3}, prefill, 4);
}

// Every second module of a file in INT8, so that stacked parts, parts of grouped rows and experts
// stand beside wide ones.
TEST(FewBits, ModulesAreWhatTheirCodesSay) {
  for (const char* name : {"qwen3_5_untied", "qwen3_next", "qwen3_5_moe", "nemotron_h_pattern"}) {
    SCOPED_TRACE(name);
    EditedModel coded(name), wide(name);
    std::vector<std::unique_ptr<Int8Module>> kept;
    size_t n = 0;
    for (const auto& [tensor_name, tensor] : std::map(wide.tensors())) {
      if (!is_layer_matrix(tensor) || n++ % 2 != 0) continue;
      ASSERT_EQ(tensor.dtype, FileDType::kF32);
      kept.push_back(std::make_unique<Int8Module>(rounded(tensor)));
      wide.tensors()[tensor_name].data = kept.back()->values.data();
      coded.tensors()[tensor_name] = {tensor_name, FileDType::kI8, tensor.shape,
                                      kept.back()->codes.data()};
      const std::string scale = tensor_name + "_scale";
      coded.tensors()[scale] = {
          scale, FileDType::kF32, {tensor.shape[0], 1}, kept.back()->scales.data()};
    }
    EXPECT_GE(kept.size(), 5u);
    const std::string folder = coded.write();
    const auto want = logits_of(wide.write(), 1);
    const auto got = logits_of(folder, 1);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5f) << i;
    EXPECT_EQ(logits_of(folder, 17), got);
    // What a load takes is known before.
    const LoadedWeightsCpu loaded = weights_of(folder);
    EXPECT_EQ(weight_bytes_cpu(*Model::load(folder, {})), loaded.bytes);
    EXPECT_EQ(loaded.n_parameters, weights_of(wide.write()).n_parameters);
  }
}

// Blocks of 128 x 128 by compressed-tensors' name. Those by Qwen's are rounded to bf16 once more.
TEST(FewBits, Fp8BlocksByEitherName) {
  const auto want = logits_of(fixture("qwen3_5_fp8"), 1);
  EditedModel model("qwen3_5_fp8");
  size_t n = 0;
  for (const auto& [name, tensor] : std::map(model.tensors())) {
    if (!name.ends_with("_scale_inv")) continue;
    const std::string other = name.substr(0, name.size() - 4);
    model.tensors().erase(name);
    model.tensors()[other] = tensor;
    model.tensors()[other].name = other;
    ++n;
  }
  EXPECT_GT(n, 5u);
  const auto got = logits_of(model.write(), 1);
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(got[i] - want[i], 2);
    size += std::pow(want[i], 2);
  }
  EXPECT_LT(std::sqrt(error / size), 1e-2);
}

}  // namespace
}  // namespace replayssm
