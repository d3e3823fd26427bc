// Whole models on the device: the demo models' logits against the reference's, and the exact mode's
// promise.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "model/safetensors.h"
#include "runtime/cuda/decode_cuda.h"

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

struct Golden {
  std::vector<int32_t> ids;
  std::vector<float> logits;

  explicit Golden(const std::string& name) {
    const TensorFiles files =
        TensorFiles::open_file(kRoot + "/tests/data/demo_logits/" + name + ".safetensors");
    for (const int64_t id : read_int64(files.at("ids"))) ids.push_back(static_cast<int32_t>(id));
    logits = read_fp32(files.at("logits"));
  }
};

struct Way {
  int32_t rows = 1;
  int32_t window = 1;
  bool graphs = false;
};

std::unique_ptr<DecodeCuda> decode_of(const std::string& name, DType checkpoint, Way way,
                                      bool exact) {
  const std::string folder = kRoot + "/models/" + name;
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
      arrays.rows[i] = {s.n, s.c, s.n, way.window, first, s.checkpoint_slot, s.checkpoint_slot, i};
      arrays.start[i] = s.n;
      arrays.first_token[i] = first;
      arrays.row_tokens[i] = arrays.stands[i] = way.window;
      for (int32_t t = 0; t < way.window; ++t) {
        arrays.tokens[first + t] = ids[at + static_cast<size_t>(t)];
        arrays.positions[first + t] = s.n + t;
      }
    }
    if (way.graphs) {
      // prepare() runs the step, too: the same step again gives the same.
      if (!captured) decode.prepare(shape);
      captured = true;
      decode.launch(shape, 0);
      decode.wait(shape);
    } else {
      decode.run_eager(shape);
    }
    const std::vector<float> logits = decode.logits(shape);
    out.insert(out.end(), logits.end() - way.window * vocab, logits.end());
    for (int32_t i = 0; i < way.rows; ++i) {
      SequenceState& s = states[static_cast<size_t>(i)];
      EXPECT_EQ(commit_step(grid, arrays.rows[i], way.window, s), Status::kOk);
    }
  }
  return out;
}

class DemoModel : public ::testing::TestWithParam<const char*> {};

// As a user runs it: bf16 activations, 16-bit ring, fp16 or fp32 checkpoint.
TEST_P(DemoModel, LogitsNearTheReference) {
  const Golden golden(GetParam());
  for (const DType checkpoint : {DType::kF32, DType::kF16}) {
    for (const Way way : {Way{1, 1, false}, Way{1, 4, false}, Way{5, 4, true}}) {
      const auto decode = decode_of(GetParam(), checkpoint, way, false);
      const size_t n =
          golden.ids.size() / static_cast<size_t>(way.window) * static_cast<size_t>(way.window);
      std::vector<float> want = golden.logits;
      want.resize(n * static_cast<size_t>(decode->model().spec().vocab));
      const double error = relative_error(logits_of(*decode, golden.ids, way), want);
      EXPECT_LE(error, 0.1) << "T " << way.window;
      std::printf("%s %s rows %d T %d: %.2e\n", GetParam(), dtype_name(checkpoint), way.rows,
                  way.window, error);
    }
  }
}

// --exact: a text's bits depend on its tokens alone.
TEST_P(DemoModel, ExactModeKeepsTheBits) {
  const Golden golden(GetParam());
  const auto ids = std::span(golden.ids).first(std::min<size_t>(golden.ids.size() / 8 * 8, 96));
  const Way one{1, 1, false};
  const auto want = logits_of(*decode_of(GetParam(), DType::kF16, one, true), ids, one);
  for (const Way way : {Way{1, 4, true}, Way{1, 8, false}, Way{7, 4, true}, Way{256, 1, true}}) {
    const auto decode = decode_of(GetParam(), DType::kF16, way, true);
    EXPECT_EQ(logits_of(*decode, ids, way), want) << way.rows << " rows of " << way.window;
  }
}

INSTANTIATE_TEST_SUITE_P(Demo, DemoModel, ::testing::Values("demo-gdn", "demo-mamba2"));

}  // namespace
}  // namespace replayssm
