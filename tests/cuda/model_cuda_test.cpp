// Whole models on the device, as a user runs them and in the exact mode: logits of the demo models
// and of fixtures with the kernels' shapes against the reference's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/thread_pool.h"
#include "model/safetensors.h"
#include "runtime/cuda/backend_cuda.h"
#include "runtime/logits.h"

namespace replayssm {
namespace {

const std::string kRoot = REPLAYSSM_SOURCE_DIR;

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(double{got[i]} - want[i], 2);
    norm += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

// The median over the positions of relative_error: where a router is nearly undecided, rounding
// takes another expert, and a few positions are far off.
double median_error(const std::vector<float>& got, const std::vector<float>& want, size_t vocab) {
  EXPECT_EQ(got.size(), want.size());
  std::vector<double> errors;
  for (size_t at = 0; at + vocab <= want.size(); at += vocab) {
    const auto row = [&](const std::vector<float>& x) {
      return std::vector<float>(x.begin() + static_cast<int64_t>(at),
                                x.begin() + static_cast<int64_t>(at + vocab));
    };
    errors.push_back(relative_error(row(got), row(want)));
  }
  std::sort(errors.begin(), errors.end());
  return errors[errors.size() / 2];
}

struct Case {
  std::string folder, golden;
  std::string suffix;  // of the golden file's names
  double bound;
  bool experts;

  std::string name() const { return folder.substr(folder.rfind('/') + 1); }
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name(); }
};

Case demo(const std::string& name) {
  return {"/models/" + name, "/tests/data/demo_logits/" + name + ".safetensors", "", 0.1, false};
}
Case fixture(const std::string& name, double bound) {
  const std::string folder = "/tests/data/models/" + name;
  return {folder, folder + "/golden.safetensors", ".50", bound, true};
}

struct Golden {
  std::vector<int32_t> ids;
  std::vector<float> logits;

  explicit Golden(const Case& c) {
    const TensorFiles files = TensorFiles::open_file(kRoot + c.golden);
    for (const int64_t id : read_int64(files.at("ids" + c.suffix))) {
      ids.push_back(static_cast<int32_t>(id));
    }
    logits = read_fp32(files.at("logits" + c.suffix));
  }
};

std::vector<float> logits_on(const Case& c, DType checkpoint, bool exact,
                             std::span<const int32_t> ids, const LogitsParams& params) {
  ThreadPool pool(1);
  const ops::Context context(pool);
  const auto device = cuda_device({.exact = exact});
  ModelOptions options;
  options.checkpoint = checkpoint;
  options.max_window = params.window;
  Runner runner(Model::load(kRoot + c.folder, options), *device, {1, 512, 256, 256});
  return logits_of(runner, ids, params);
}

class ModelCudaTest : public ::testing::TestWithParam<Case> {};

// As a user runs it: bf16 activations, 16-bit ring, fp16 or fp32 checkpoint.
TEST_P(ModelCudaTest, LogitsNearTheReference) {
  const Case& c = GetParam();
  const Golden golden(c);
  const size_t vocab = golden.logits.size() / golden.ids.size();
  for (const DType checkpoint : {DType::kF32, DType::kF16}) {
    for (const LogitsParams& params :
         {LogitsParams{LogitsMode::kPrefill, 1, 0}, LogitsParams{LogitsMode::kDecode, 1, 0},
          LogitsParams{LogitsMode::kVerify, 4, 1}}) {
      const auto got = logits_on(c, checkpoint, false, golden.ids, params);
      const double error =
          c.experts ? median_error(got, golden.logits, vocab) : relative_error(got, golden.logits);
      EXPECT_LE(error, c.bound) << "mode " << static_cast<int>(params.mode);
      std::printf("%s %s T %d: %.2e\n", c.name().c_str(), dtype_name(checkpoint), params.window,
                  error);
    }
  }
}

// --exact: a sequence's bits depend on its tokens alone.
TEST_P(ModelCudaTest, ExactModeKeepsTheBits) {
  const Case& c = GetParam();
  const Golden golden(c);
  const auto ids = std::span(golden.ids).first(std::min<size_t>(golden.ids.size(), 96));
  const auto want = logits_on(c, DType::kF16, true, ids, {LogitsMode::kDecode, 1, 0});
  EXPECT_EQ(logits_on(c, DType::kF16, true, ids, {LogitsMode::kPrefill, 1, 0}), want);
  for (const int32_t window : {4, 8, 16}) {
    EXPECT_EQ(logits_on(c, DType::kF16, true, ids, {LogitsMode::kVerify, window, 3}), want)
        << window;
  }
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  std::string out = info.param.name();
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

INSTANTIATE_TEST_SUITE_P(Demo, ModelCudaTest,
                         ::testing::Values(demo("demo-gdn"), demo("demo-mamba2")), case_name);
// Of FP8 products the bound is the rounding of their inputs to E4M3.
INSTANTIATE_TEST_SUITE_P(Experts, ModelCudaTest,
                         ::testing::Values(fixture("kernels_qwen3_5_moe", 0.05),
                                           fixture("kernels_qwen3_next", 0.05),
                                           fixture("kernels_nemotron_h_moe", 0.05),
                                           fixture("kernels_nemotron_h_latent", 0.05),
                                           fixture("kernels_qwen3_5_moe_fp8", 0.1),
                                           fixture("kernels_nemotron_h_fp8", 0.1)),
                         case_name);

}  // namespace
}  // namespace replayssm
