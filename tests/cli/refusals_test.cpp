// Wrong usage exits with 2, everything else that goes wrong with 1; always one line on stderr that
// names the flag or the file.
#include "model_folder.h"
#include "process.h"

namespace replayssm {
namespace {

using Arguments = std::vector<std::string>;

class Refusals : public testing::Test {
 protected:
  // `generate` on a good model with good flags, and more.
  void generate_fails(int exit_code, const Arguments& more, const Arguments& parts) const {
    Arguments arguments = {"generate", "-m", model_.path(), "-p", "x"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_fails(exit_code, arguments, parts);
  }
  void logits_fails(int exit_code, const Arguments& more, const Arguments& parts) const {
    Arguments arguments = {"logits", "-m", model_.path()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_fails(exit_code, arguments, parts);
  }

  ModelFolder model_{"qwen3_5_tied"};
};

TEST_F(Refusals, Usage) {
  expect_fails(2, {}, {"verb", "generate logits inspect serve"});
  expect_fails(2, {""}, {"verb"});
  expect_fails(2, {"-m", "x"}, {});
  expect_fails(2, {"frobnicate"}, {"frobnicate"});
  expect_fails(2, {"frob\nnicate"}, {"frob?nicate"});
  expect_fails(2, {"generate", "-m", model_.path()}, {"-p"});
  expect_fails(2, {"generate", "-m", model_.path(), "-p", ""}, {"-p"});
  expect_fails(2, {"generate", "-m"}, {"-m"});
  generate_fails(2, {"--frob"}, {"--frob"});
  generate_fails(2, {"extra"}, {"extra"});
  // What the verb has become.
  expect_fails(2, {"bench", "layers", "--batch", "1"}, {"replayssm-bench"});
}

TEST_F(Refusals, GenerateFlags) {
  const std::vector<Arguments> bad = {
      {"-n", "0"},
      {"-n", "-5"},
      {"-n", "9223372036854775807"},
      {"-n", "many"},
      {"--temperature", "-1"},
      {"--temperature", "nan"},
      {"--temperature", "inf"},
      {"--temperature", "warm"},
      {"--top-k", "-1"},
      {"--top-p", "0"},
      {"--top-p", "1.5"},
      {"--top-p", "nan"},
      {"--min-p", "-0.1"},
      {"--min-p", "1.1"},
      {"--min-p", "nan"},
      {"--seed", "-1"},
      {"--seed", "18446744073709551616"},
      {"--grid", "7"},
      {"--grid", "0"},
      {"--grid", "128"},
      {"--checkpoint-dtype", "fp8"},
      {"--checkpoint-dtype", "FP16"},
      {"--ring-dtype", "int8"},
      {"--threads", "-1"},
      {"--threads", "100000"},
      {"--device", "tpu"},
      {"--draft-tokens", "0"},
      {"--draft-tokens", "-3"},
      {"--draft-tokens", "1000000"},
      {"--draft-tokens", "2147483647"},
      {"--draft-tokens", "99999999999"},
  };
  for (const auto& flags : bad) generate_fails(2, flags, {flags[0]});
  // What is out of a range is told the range.
  generate_fails(2, {"-n", "0"}, {"-n", "1..1073741824"});
  generate_fails(2, {"--temperature", "nan"}, {"--temperature", "0..100", "nan"});
  generate_fails(2, {"--draft-tokens", "64"}, {"--draft-tokens", "1..63", "64"});
  generate_fails(2, {"--threads", "1025"}, {"--threads", "0..1024", "1025"});
  generate_fails(2, {"--grid", "12"}, {"--grid", "8,16,32,64"});
  generate_fails(2, {"--draft", "ngram", "--draft-tokens", "16"}, {"--draft-tokens", "--grid 16"});
  generate_fails(2, {"--draft", "ngram", "--draft-tokens", "2147483647"}, {"--draft-tokens"});
  generate_fails(1, {"--draft", "mtp"}, {"no multi-token-prediction head"});
  // Without the backend, without a device, or for this model, which is stored in fp32.
  generate_fails(1, {"--device", "cuda"}, {"CUDA"});
}

TEST_F(Refusals, LogitsFlags) {
  const Arguments good = {"--ids", "1", "--out", model_.file("o")};
  const auto with = [&](Arguments more) {
    more.insert(more.end(), good.begin(), good.end());
    return more;
  };
  logits_fails(2, {"--ids", "1"}, {"--out"});
  logits_fails(2, {"--out", model_.file("o")}, {"--ids", "--ids-file"});
  logits_fails(2, with({"--ids-file", "f"}), {"--ids", "--ids-file"});
  logits_fails(2, with({"--mode", "guess"}), {"--mode", "guess"});
  logits_fails(2, with({"--mode", "verify", "--window", "0"}), {"--window"});
  logits_fails(2, with({"--mode", "verify", "--window", "17"}), {"--window", "17", "--grid 16"});
  logits_fails(2, with({"--mode", "verify", "--window", "2147483647"}), {"--window"});
  logits_fails(2, with({"--reject", "-1"}), {"--reject"});
  logits_fails(2, with({"--grid", "9"}), {"--grid"});
}

TEST_F(Refusals, InspectFlags) {
  const auto inspect = [&](Arguments more) {
    more.insert(more.begin(), {"inspect", "-m", model_.path()});
    return more;
  };
  expect_fails(2, inspect({"--context", "0"}), {"--context"});
  expect_fails(2, inspect({"--context", "9223372036854775807"}), {"--context"});
  expect_fails(2, inspect({"--memory", "-1"}), {"--memory"});
  expect_fails(2, inspect({"--memory", "nan"}), {"--memory"});
  expect_fails(2, inspect({"--memory", "1e300"}), {"--memory"});
  expect_fails(2, inspect({"--window", "0"}), {"--window"});
  expect_fails(2, inspect({"--window", "17"}), {"--window", "--grid 16"});
}

TEST_F(Refusals, Folders) {
  for (const char* verb : {"generate", "inspect", "logits"}) {
    const auto arguments = [&](const std::string& folder) -> Arguments {
      Arguments out = {verb, "-m", folder};
      if (out[0] == "generate") out.insert(out.end(), {"-p", "x"});
      if (out[0] == "logits") out.insert(out.end(), {"--ids", "1", "--out", model_.file("o")});
      return out;
    };
    expect_fails(1, arguments("/no/such/model"), {"/no/such/model"});
    expect_fails(2, arguments(""), {"--model", "must not be empty"});
    expect_fails(1, arguments("Org/Name-4B"),
                 {"Org/Name-4B", "hf download Org/Name-4B", "models--"});
    expect_fails(1, arguments(model_.file("model.safetensors")), {"is a file", model_.path()});
    expect_fails(1, arguments("/no/such\nmodel"), {"/no/such?model"});
    const TempFolder empty;
    expect_fails(1, arguments(empty.path()), {empty.path()});
    const ModelFolder cut("qwen3_5_tied");
    const std::string weights = read_text(cut.file("model.safetensors"));
    write_text(cut.file("model.safetensors"), weights.substr(0, weights.size() / 2));
    expect_fails(1, arguments(cut.path()), {cut.file("model.safetensors")});
    write_text(cut.file("model.safetensors"), weights);
    write_text(cut.file("config.json"), "{");
    expect_fails(1, arguments(cut.path()), {cut.file("config.json")});
  }
  const ModelFolder mute("qwen3_5_tied");
  std::filesystem::remove(mute.file("tokenizer.json"));
  expect_fails(1, {"generate", "-m", mute.path(), "-p", "x"}, {mute.file("tokenizer.json")});
}

TEST_F(Refusals, Prompts) {
  expect_fails(1, {"generate", "-m", model_.path(), "-p", std::string(600, 'x')},
               {"-p", "600", "512"});
  expect_fails(1, {"generate", "-m", model_.path(), "-p", std::string(512, 'x')},
               {"prompt", "512"});
  // This tokenizer has ids that the model has not.
  expect_fails(1, {"generate", "-m", model_.path(), "-p", "\xc3\xa9"}, {"-p", "[0, 120)"});
}

TEST_F(Refusals, Drafts) {
  generate_fails(2, {"--draft", ""}, {"--draft"});
  generate_fails(2, {"--draft", "script:"}, {"--draft"});
  generate_fails(1, {"--draft", "/no/such/model"}, {"/no/such/model"});
  generate_fails(1, {"--draft", "script:/no/such/script"}, {"/no/such/script"});
  generate_fails(1, {"--draft", "script:" + model_.path()}, {model_.path()});
  write_text(model_.file("script"), "[[500]]");
  generate_fails(1, {"--draft", "script:" + model_.file("script")}, {model_.file("script"), "500"});
  const ModelFolder small("qwen3_5_tied");
  write_text(small.file("config.json"), "[]");
  generate_fails(1, {"--draft", small.path()}, {small.path()});
}

TEST_F(Refusals, Ids) {
  const std::string out = model_.file("out");
  const auto ids = [&](const std::string& text) -> Arguments {
    return {"--ids", text, "--out", out};
  };
  logits_fails(1, ids("1,120"), {"--ids", "120", "[0, 120)"});
  logits_fails(1, ids("1,-2"), {"--ids", "-2"});
  logits_fails(1, ids("1;2"), {"--ids", "1;2"});
  logits_fails(1, ids("99999999999"), {"--ids", "99999999999"});
  logits_fails(1, ids("1.5"), {"--ids", "1.5"});
  logits_fails(1, ids(" , "), {"--ids", "no token ids"});
  const std::string file = model_.file("ids");
  const Arguments from_file = {"--ids-file", file, "--out", out};
  logits_fails(1, from_file, {file});
  write_text(file, "");
  logits_fails(1, from_file, {file});
  write_text(file, "1 2 x");
  logits_fails(1, from_file, {file, "x"});
  write_text(file, std::string("1 \0\n\x1b[31m 3", 12));
  logits_fails(1, from_file, {file, "is not a token id"});
  write_text(file, "1 2 500");
  logits_fails(1, from_file, {file, "500"});
  std::string many;
  for (int i = 0; i < 513; ++i) many += "1 ";
  write_text(file, many);
  logits_fails(1, from_file, {file, "513", "512"});
  write_text(file, "");
  std::filesystem::resize_file(file, uint64_t{1} << 30);  // sparse
  logits_fails(1, from_file, {file, "allowed"});
  logits_fails(1, {"--ids-file", model_.path(), "--out", out}, {model_.path()});
  logits_fails(1, {"--ids-file", "/dev/zero", "--out", out}, {"/dev/zero"});
}

TEST_F(Refusals, Output) {
  logits_fails(2, {"--ids", "1", "--out", ""}, {"--out"});
  logits_fails(1, {"--ids", "1", "--out", "/no/such/folder/o"}, {"/no/such/folder/o"});
  logits_fails(1, {"--ids", "1", "--out", model_.path()}, {model_.path()});
  logits_fails(1, {"--ids", "1", "--out", "/dev/full"}, {"/dev/full"});
  const Outcome outcome = run_binary({"inspect", "-m", model_.path()}, "/dev/full");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.err, "replayssm: stdout: cannot write\n");
}

}  // namespace
}  // namespace replayssm
