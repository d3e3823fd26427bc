// The engine's logits against transformers' (tests/data/models, made by tools/fixtures), and
// against themselves: prefill, single tokens and windows give the same bits.
#include <algorithm>
#include <cmath>

#include "engine.h"
#include "testing.h"

namespace replayssm {
namespace {

constexpr int kLengths[] = {1, 2, 3, 7, 50};

struct Golden {
  std::vector<int32_t> ids;
  std::vector<float> logits;
};

Golden read_golden(const std::string& path, int length) {
  const TensorFiles files = TensorFiles::open_file(path);
  Golden out;
  for (const int64_t id : read_int64(files.at(concat("ids.", length)))) {
    out.ids.push_back(static_cast<int32_t>(id));
  }
  out.logits = read_fp32(files.at(concat("logits.", length)));
  return out;
}

// The largest error at any position, against the largest |logit| of that sequence.
double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double largest = 0.0, error = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    const double e = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!(e <= error)) error = e;  // a NaN stays
  }
  return error / largest;
}

// The median over the positions of relative_error: where a router is nearly undecided, rounding
// takes another expert, and a few positions are far off.
double median_error(const std::vector<float>& got, const std::vector<float>& want, size_t n) {
  double largest = 0.0;
  for (const float x : want) largest = std::max(largest, std::abs(static_cast<double>(x)));
  std::vector<double> errors(n, 0.0);
  const size_t vocab = want.size() / n;
  for (size_t i = 0; i < want.size(); ++i) {
    const double e = std::abs(static_cast<double>(got[i]) - want[i]) / largest;
    if (!(e <= errors[i / vocab])) errors[i / vocab] = e;
  }
  std::nth_element(errors.begin(), errors.begin() + static_cast<int64_t>(n / 2), errors.end());
  return errors[n / 2];
}

struct Case {
  std::string fixture;
  int32_t interval;
  Isa isa;

  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << c.fixture << " B=" << c.interval;
  }
};

std::vector<Case> cases() {
  std::vector<Case> out;
  const auto add = [&](const char* name, std::initializer_list<int32_t> intervals) {
    for (const int32_t interval : intervals) {
      for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
        if (isa_supported(isa)) out.push_back({name, interval, isa});
      }
    }
  };
  for (const char* name :
       {"qwen3_5_tied", "qwen3_5_untied", "qwen3_5_vlm", "qwen3_5_bf16", "nemotron_h_pattern",
        "nemotron_h_names", "nemotron_h_types", "nemotron_h_bf16"}) {
    add(name, {8, 16});
  }
  for (const char* name : {"qwen3_5_moe", "qwen3_next", "nemotron_h_moe", "nemotron_h_latent"}) {
    add(name, {8});
  }
  return out;
}

class GoldenLogits : public ::testing::TestWithParam<Case> {
 protected:
  ModelOptions options() const {
    ModelOptions out;
    out.interval = GetParam().interval;
    return out;
  }
};

// Every split of the work: [prefilled tokens, window of the steps that follow].
struct Mode {
  const char* name;
  size_t prefill;
  size_t window;
};
constexpr Mode kModes[] = {
    {"prefill", 1000, 1},   {"single", 0, 1},
    {"windows2", 0, 2},     {"windows5", 0, 5},
    {"windows8", 0, 8},     {"prefill3_single", 3, 1},
    {"prefill7_5", 7, 5},   {"prefill16_single", 16, 1},
    {"prefill17_8", 17, 8},
};

TEST_P(GoldenLogits, MatchTransformersInEveryMode) {
  ModelOptions options = this->options();
  options.activation = options.checkpoint = options.ring = DType::kF32;
  Engine engine(fixture(GetParam().fixture), options, false, 1, GetParam().isa);
  double worst = 0.0;
  for (const int length : kLengths) {
    const Golden golden = read_golden(fixture(GetParam().fixture) + "/golden.safetensors", length);
    const auto prefill = engine.logits(golden.ids, 1000, 1);
    worst = std::max(worst, relative_error(prefill, golden.logits));
    for (const Mode& mode : kModes) {
      EXPECT_EQ(engine.logits(golden.ids, mode.prefill, mode.window), prefill)
          << mode.name << " of " << length << " tokens";
    }
  }
  EXPECT_LE(worst, 2e-4);
  RecordProperty("max_relative_error", std::to_string(worst));
  std::printf("%s B=%d %s: %.2e\n", GetParam().fixture.c_str(), GetParam().interval,
              isa_name(GetParam().isa), worst);
}

// 16-bit activations, rings and checkpoints: the modes still agree to the bit.
TEST_P(GoldenLogits, SixteenBitModesAgree) {
  for (const DType checkpoint : {DType::kF16, DType::kBF16, DType::kI8}) {
    ModelOptions options = this->options();
    options.activation = DType::kBF16;
    options.ring = checkpoint == DType::kF16 ? DType::kF16 : DType::kBF16;
    options.checkpoint = checkpoint;
    const bool pairs = GetParam().isa == Isa::kAvx512 && ops::bf16_dot_supported();
    Engine engine(fixture(GetParam().fixture), options, pairs, 1, GetParam().isa);
    const Golden golden = read_golden(fixture(GetParam().fixture) + "/golden.safetensors", 50);
    const auto prefill = engine.logits(golden.ids, 1000, 1);
    if (has_mixer<MoeSpec>(engine.model().spec())) {
      EXPECT_LE(median_error(prefill, golden.logits, golden.ids.size()), 0.05);
    } else {
      EXPECT_LE(relative_error(prefill, golden.logits), 0.1);
    }
    for (const Mode& mode : kModes) {
      EXPECT_EQ(engine.logits(golden.ids, mode.prefill, mode.window), prefill)
          << mode.name << " " << dtype_name(checkpoint);
    }
    EXPECT_EQ(engine.forward().n_saturated(), 0);
  }
}

// The trained models that ship with the project. They are stored in bf16; their reference logits
// are transformers' in fp32, so activations are forced to fp32 here.
TEST(DemoLogits, MatchTransformers) {
  const std::string root = REPLAYSSM_SOURCE_DIR;
  for (const char* name : {"demo-gdn", "demo-mamba2", "demo-draft"}) {
    const TensorFiles files =
        TensorFiles::open_file(concat(root, "/tests/data/demo_logits/", name, ".safetensors"));
    std::vector<int32_t> ids;
    for (const int64_t id : read_int64(files.at("ids"))) ids.push_back(static_cast<int32_t>(id));
    const auto want = read_fp32(files.at("logits"));
    ModelOptions options;
    options.activation = options.checkpoint = options.ring = DType::kF32;
    Engine engine(concat(root, "/models/", name), options);
    const auto prefill = engine.logits(ids, 1000, 1);
    const double error = relative_error(prefill, want);
    EXPECT_LE(error, 2e-4) << name;
    EXPECT_EQ(engine.logits(ids, 0, 1), prefill) << name;
    EXPECT_EQ(engine.logits(ids, 17, 5), prefill) << name;

    ModelOptions stored;  // as a user runs it: bf16 activations, 16-bit ring and checkpoint
    Engine small(concat(root, "/models/", name), stored);
    const double rounded = relative_error(small.logits(ids, 1000, 1), want);
    EXPECT_LE(rounded, 0.1) << name;
    std::printf("%s: fp32 %.2e, as stored %.2e\n", name, error, rounded);
  }
}

// Other ways of storing. FP8: the oracle computed on value * scale, rounded to bf16, as the engine
// widens it. Experts of a layer in one tensor. kernels_*: the fixtures of the CUDA engine.
TEST(StoredLogits, MatchTransformers) {
  for (const char* name :
       {"qwen3_5_fp8", "nemotron_h_fp8", "qwen3_5_moe_fused", "kernels_qwen3_5_moe",
        "kernels_qwen3_next", "kernels_qwen3_5_moe_fp8", "kernels_nemotron_h_moe",
        "kernels_nemotron_h_latent", "kernels_nemotron_h_fp8"}) {
    ModelOptions options;
    options.activation = options.checkpoint = options.ring = DType::kF32;
    Engine engine(fixture(name), options);
    for (const int length : kLengths) {
      const Golden golden = read_golden(fixture(name) + "/golden.safetensors", length);
      const auto prefill = engine.logits(golden.ids, 1000, 1);
      EXPECT_LE(relative_error(prefill, golden.logits), 2e-4) << name;
      EXPECT_EQ(engine.logits(golden.ids, 0, 1), prefill) << name;
      EXPECT_EQ(engine.logits(golden.ids, 17, 5), prefill) << name;
    }
  }
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  constexpr const char* kIsas[] = {"portable", "avx2", "avx512"};
  return concat(info.param.fixture, "_B", info.param.interval, "_",
                kIsas[static_cast<int>(info.param.isa)]);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GoldenLogits, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace replayssm
