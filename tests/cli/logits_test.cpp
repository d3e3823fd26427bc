// logits: one tensor, [positions, vocab] fp32, the same bits in every mode.
#include "model/safetensors.h"
#include "process.h"

namespace replayssm {
namespace {

using Arguments = std::vector<std::string>;

class LogitsVerb : public testing::TestWithParam<const char*> {
 protected:
  std::vector<float> logits(const Arguments& more) const {
    const std::string path = folder_.file("out.safetensors");
    Arguments arguments = {"logits", "-m", fixture(GetParam()), "--out", path};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_binary(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    const auto files = TensorFiles::open_file(path);
    EXPECT_EQ(files.tensors().size(), 1u);
    const TensorView& tensor = files.at("logits");
    EXPECT_EQ(tensor.dtype, FileDType::kF32);
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{n_ids_, 120}));
    auto out = read_fp32(tensor);
    std::filesystem::remove(path);
    return out;
  }

  void write_ids(int64_t n) {
    std::string text;
    const char* separators[] = {" ", ",", "\n", "\t", ", ", "\r\n"};
    for (int64_t i = 0; i < n; ++i) text += concat((i * 37 + 5) % 120, separators[i % 6]);
    write_text(ids_path(), text);
    n_ids_ = n;
  }
  std::string ids_path() const { return folder_.file("ids.txt"); }

  TempFolder folder_;
  int64_t n_ids_ = 0;
};

TEST_P(LogitsVerb, ModesAreBitwiseEqual) {
  write_ids(200);
  const std::vector<Arguments> numerics = {{},
                                           {"--grid", "8"},
                                           {"--grid", "32", "--checkpoint-dtype", "fp16"},
                                           {"--checkpoint-dtype", "int8", "--ring-dtype", "bf16"},
                                           {"--grid", "64", "--checkpoint-dtype", "bf16"}};
  std::vector<std::vector<float>> all;
  for (const auto& numeric : numerics) {
    const auto with = [&](Arguments more) {
      more.insert(more.end(), numeric.begin(), numeric.end());
      more.insert(more.end(), {"--ids-file", ids_path()});
      return logits(more);
    };
    const auto want = with({});
    EXPECT_EQ(with({"--mode", "prefill", "--threads", "1"}), want);
    EXPECT_EQ(with({"--mode", "decode"}), want);
    EXPECT_EQ(with({"--mode", "verify"}), want);
    EXPECT_EQ(with({"--mode", "verify", "--window", "5", "--reject", "99"}), want);
    all.push_back(want);
  }
  EXPECT_NE(all[2], all[3]) << "the dtypes do nothing";
}

TEST_P(LogitsVerb, IdsOnTheCommandLine) {
  write_ids(5);
  const auto want = logits({"--ids-file", ids_path()});
  EXPECT_EQ(logits({"--ids", "5,42,79,116,33"}), want);
  EXPECT_EQ(logits({"--ids", "5 42\t79, 116 ,\n33,"}), want);
  n_ids_ = 1;
  EXPECT_EQ(logits({"--ids", "5", "--mode", "verify", "--window", "16"}),
            std::vector<float>(want.begin(), want.begin() + 120));
}

INSTANTIATE_TEST_SUITE_P(Cli, LogitsVerb, testing::Values("qwen3_5_untied", "nemotron_h_bf16"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace replayssm
