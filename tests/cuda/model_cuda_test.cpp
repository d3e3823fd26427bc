// Whole models on the device: logits of the demo models and of fixtures with the kernels' shapes
// against the reference's, and the exact mode's promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "bench/serve/decode_cuda.h"
#include "model/safetensors.h"

namespace replayssm {
namespace {
using bench::DecodeCuda;
using bench::DecodeCudaOptions;
using bench::StepArrays;
using bench::StepShape;

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

struct Way {
  int32_t rows = 1;
  int32_t window = 1;
  bool graphs = false;
};

std::unique_ptr<DecodeCuda> decode_of(const Case& c, DType checkpoint, Way way, bool exact) {
  const std::string folder = kRoot + c.folder;
  DecodeCudaOptions options;
  options.model.checkpoint = checkpoint;
  options.model.max_window = way.window;
  options.max_rows = way.rows;
  options.max_positions = 512;
  options.memory_bytes = int64_t{8} << 30;
  options.exact = exact;
  return std::make_unique<DecodeCuda>(describe_model(folder), folder, false, options);
}

// The text in windows, every row the same; logits of the last row. Whole windows only.
std::vector<float> logits_of(DecodeCuda& decode, std::span<const int32_t> ids, Way way) {
  const StepShape shape{way.rows, way.window};
  const StepArrays arrays = decode.arrays(shape);
  const int64_t pages = decode.pages_each(), vocab = decode.model().spec().vocab;
  const Grid grid = decode.model().recurrent[0].problem.grid;
  std::vector<SequenceState> states;
  for (int32_t i = 0; i < way.rows; ++i) {
    states.push_back({0, 0, way.rows - 1 - i, i});
    for (int64_t p = 0; p < pages; ++p) {
      arrays.pages[i * pages + p] = static_cast<int32_t>(p * way.rows + i);
    }
  }
  decode.send_pages(shape);
  std::vector<float> out;
  bool captured = false;
  for (size_t at = 0; at + static_cast<size_t>(way.window) <= ids.size();
       at += static_cast<size_t>(way.window)) {
    for (int32_t i = 0; i < way.rows; ++i) {
      const SequenceState& s = states[static_cast<size_t>(i)];
      const int64_t first = int64_t{i} * way.window;
      arrays.windows.set_row(
          i, {s.n, s.c, s.n, way.window, first, s.checkpoint_slot, s.checkpoint_slot, i});
      arrays.stands[i] = way.window;
      for (int32_t t = 0; t < way.window; ++t) {
        arrays.windows.tokens[first + t] = ids[at + static_cast<size_t>(t)];
      }
    }
    if (way.graphs) {
      // prepare() runs the step, too: the same step again gives the same.
      if (!captured) decode.prepare(shape);
      captured = true;
      decode.launch(shape, 0);
      decode.release(shape);
      decode.wait(shape);
    } else {
      decode.run_eager(shape);
    }
    const std::vector<float> logits = decode.logits(shape);
    out.insert(out.end(), logits.end() - way.window * vocab, logits.end());
    for (int32_t i = 0; i < way.rows; ++i) {
      SequenceState& s = states[static_cast<size_t>(i)];
      EXPECT_EQ(commit_step(grid, arrays.windows.rows[i], way.window, s), Status::kOk);
    }
  }
  return out;
}

class ModelCudaTest : public ::testing::TestWithParam<Case> {};

// As a user runs it: bf16 activations, 16-bit ring, fp16 or fp32 checkpoint.
TEST_P(ModelCudaTest, LogitsNearTheReference) {
  const Case& c = GetParam();
  const Golden golden(c);
  for (const DType checkpoint : {DType::kF32, DType::kF16}) {
    for (const Way way : {Way{1, 1, false}, Way{1, 4, false}, Way{5, 4, true}}) {
      const auto decode = decode_of(c, checkpoint, way, false);
      const size_t n =
          golden.ids.size() / static_cast<size_t>(way.window) * static_cast<size_t>(way.window);
      const auto vocab = static_cast<size_t>(decode->model().spec().vocab);
      std::vector<float> want = golden.logits;
      want.resize(n * vocab);
      const std::vector<float> got = logits_of(*decode, golden.ids, way);
      const double error = c.experts ? median_error(got, want, vocab) : relative_error(got, want);
      EXPECT_LE(error, c.bound) << "T " << way.window;
      std::printf("%s %s rows %d T %d: %.2e\n", c.name().c_str(), dtype_name(checkpoint), way.rows,
                  way.window, error);
    }
  }
}

// --exact: a text's bits depend on its tokens alone.
TEST_P(ModelCudaTest, ExactModeKeepsTheBits) {
  const Case& c = GetParam();
  const Golden golden(c);
  const auto ids = std::span(golden.ids).first(std::min<size_t>(golden.ids.size() / 8 * 8, 96));
  const Way one{1, 1, false};
  const auto want = logits_of(*decode_of(c, DType::kF16, one, true), ids, one);
  for (const Way way : {Way{1, 4, true}, Way{1, 8, false}, Way{7, 4, true}, Way{256, 1, true}}) {
    const auto decode = decode_of(c, DType::kF16, way, true);
    EXPECT_EQ(logits_of(*decode, ids, way), want) << way.rows << " rows of " << way.window;
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
