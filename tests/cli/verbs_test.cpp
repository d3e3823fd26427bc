// --help of each verb, inspect's figures.
#include <map>
#include <nlohmann/json.hpp>

#include "help.h"
#include "model/cpu/weights_cpu.h"
#include "model/formats/gguf.h"
#include "process.h"

namespace replayssm {
namespace {

TEST(Help, EveryFlagIsDocumented) {
  const std::map<std::string, std::vector<std::string>> flags = {
      {"generate",
       {"--model", "--prompt", "-n", "--temperature", "--top-k", "--top-p", "--min-p", "--seed",
        "--draft", "--draft-tokens", "--grid", "--checkpoint-dtype", "--ring-dtype", "--threads",
        "--json", "--device", "--exact"}},
      {"logits",
       {"--model", "--ids", "--ids-file", "--out", "--mode", "--window", "--reject", "--grid",
        "--checkpoint-dtype", "--ring-dtype", "--threads"}},
      {"inspect",
       {"--model", "--grid", "--checkpoint-dtype", "--ring-dtype", "--memory", "--context",
        "--window"}},
  };
  const Outcome all = run_binary({"--help"});
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_EQ(all.err, "");
  for (const auto& [verb, names] : flags) {
    EXPECT_NE(all.out.find(verb), std::string::npos);
    const Outcome help = run_binary({verb, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_EQ(help.err, "");
    expect_documented(help.out, names);
  }
}

// The bytes as inspect writes them.
std::string three_digits(int64_t bytes) {
  const char* units[] = {"B", "KB", "MB", "GB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1000; value /= 1000) ++unit;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.3g %s", value, units[unit]);
  return text;
}

TEST(Inspect, FiguresAreThoseOfTheModel) {
  for (const char* name : {"qwen3_5_untied", "nemotron_h_bf16"}) {
    ModelOptions options;
    options.interval = 32;
    options.max_window = 5;
    options.checkpoint = DType::kI8;
    const auto model = Model::load(fixture(name), options);
    ModelMemory m = memory_of(plan_layers_cpu(*model, best_isa()).sizes);
    int64_t weights = 0;
    const TensorFiles files = TensorFiles::open_folder(fixture(name));
    for (const TensorView& tensor : files.tensors()) weights += tensor.bytes;
    const Outcome got =
        run_binary({"inspect", "-m", fixture(name), "--grid", "32", "--window", "5",
                    "--checkpoint-dtype", "int8", "--context", "100", "--memory", "0.5"});
    EXPECT_EQ(got.exit_code, 0) << got.err;
    EXPECT_EQ(got.err, "");
    const int64_t sequence = m.checkpoint_slot + m.ring_slot + m.conv_slot + 7 * m.kv_page;
    const std::vector<std::string> parts = {
        fixture(name),
        "vocab 120",
        "4 layers",
        "context 512",
        "attention",
        std::string(name) == "nemotron_h_bf16" ? "Mamba-2" : "GDN",
        concat("weights    ", three_digits(weights), "\n"),
        std::string(name) == "nemotron_h_bf16" ? " in BF16\n" : " in F32\n",
        concat("checkpoint ", three_digits(m.checkpoint_slot), "\n"),
        concat("ring       ", three_digits(m.ring_slot), " (41 rows of ",
               three_digits(m.ring_token), ")\n"),
        concat("conv ring  ", three_digits(m.conv_slot), "\n"),
        concat("KV         ", three_digits(m.kv_token), " a token\n"),
        concat("in all     ", three_digits(sequence), " at 100 tokens"),
        concat("activation ", dtype_name(model->activation()), ", checkpoint int8, ring ",
               dtype_name(model->ring()), ", grid 32\n"),
        concat(static_cast<int64_t>((0.5e9 - static_cast<double>(weights)) /
                                    static_cast<double>(sequence)),
               " sequences of 100 tokens fit in 0.5 GB"),
    };
    for (const auto& part : parts) {
      EXPECT_NE(got.out.find(part), std::string::npos) << "'" << part << "' is not in\n" << got.out;
    }
  }
}

// A configuration alone gives the published figures of a model that no test machine holds.
TEST(Inspect, GeometryWithoutWeights) {
  const Outcome got = run_binary(
      {"inspect", "-m", REPLAYSSM_SOURCE_DIR "/models/geometries/nemotron-3-super-120b-a12b.json",
       "--checkpoint-dtype", "fp32"});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  for (const char* part : {"22 of 512 experts, ff 2688, shared 5376, latent 1024",
                           "parameters 120668.", "12233.367 M read for a token", "241 GB in bf16",
                           "checkpoint 168 MB", "KV         8.19 KB a token"}) {
    EXPECT_NE(got.out.find(part), std::string::npos) << part << "\n" << got.out;
  }
  expect_fails(1, {"inspect", "-m", "x.json"}, {"x.json"});
}

// A demo model's folder with its weights' header alone: the data is a hole in the file.
TEST(Inspect, TouchesNoWeights) {
  const std::string demo = REPLAYSSM_SOURCE_DIR "/models/demo-mamba2";
  const TempFolder folder;
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "chat_template.jinja"}) {
    std::filesystem::copy(demo + "/" + name, folder.file(name));
  }
  const std::string whole = read_text(demo + "/model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, whole.data(), 8);
  write_text(folder.file("model.safetensors"), whole.substr(0, 8 + header_bytes));
  std::filesystem::resize_file(folder.file("model.safetensors"), whole.size());
  const Outcome got = run_binary({"inspect", "-m", folder.path()});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  const Outcome real = run_binary({"inspect", "-m", demo});
  const auto without_path = [](const std::string& text, const std::string& path) {
    std::string out = text;
    for (size_t at; (at = out.find(path)) != out.npos;) out.erase(at, path.size());
    return out;
  };
  EXPECT_EQ(without_path(got.out, folder.path()), without_path(real.out, demo));
  for (const char* part : {" in BF16\n", "template   ", "chat_template.jinja\n",
                           "end tokens 4082 <|im_end|>, 4080 <|endoftext|>\n"}) {
    EXPECT_NE(got.out.find(part), std::string::npos) << part << "\n" << got.out;
  }
}

// The same bits of a GGUF file that keeps the folder's types, and one of few bits that runs.
TEST(Gguf, EveryVerbTakesAFile) {
  const std::string demo = REPLAYSSM_SOURCE_DIR "/models/demo-gdn";
  const TempFolder folder;
  const std::string plain = folder.file("plain.gguf"), few = folder.file("few.gguf");
  const auto run = [](const std::vector<std::string>& arguments) {
    const Outcome got = run_binary(arguments);
    EXPECT_EQ(got.exit_code, 0) << got.err;
    return got.out;
  };
  run({"quantize", "-m", demo, "--to", "gguf", plain});
  run({"quantize", "-m", demo, "--to", "q4_k", few});
  const auto generate = [&](const std::string& model, const std::string& draft) {
    return run({"generate", "-m", model, "-p", "The kernel", "-n", "24", "--draft", draft});
  };
  EXPECT_EQ(generate(plain, "off"), generate(demo, "off"));
  EXPECT_EQ(generate(few, "off"), generate(few, plain));
  const auto logits = [&](const std::string& model) {
    run({"logits", "-m", model, "--ids", "5,300,7,9", "--out", folder.file("logits")});
    return read_text(folder.file("logits"));
  };
  EXPECT_EQ(logits(plain), logits(demo));

  const std::string shown = run({"inspect", "-m", few});
  for (const char* part :
       {"qwen35, hidden 256", " in Q4_K", "template   ", "few.gguf: tokenizer.chat_template\n",
        "end tokens 4082 <|im_end|>, 4080 <|endoftext|>\n"}) {
    EXPECT_NE(shown.find(part), std::string::npos) << part << "\n" << shown;
  }
  // Its tensors a hole: inspect reads none of them.
  int64_t tensor_bytes = 0;
  const auto files = GgufFiles::open(few);
  for (const GgufTensor& tensor : files.tensors()) tensor_bytes += tensor.bytes;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(few));
  std::filesystem::resize_file(few, static_cast<uintmax_t>(size - tensor_bytes + 4096));
  std::filesystem::resize_file(few, static_cast<uintmax_t>(size));
  EXPECT_EQ(run({"inspect", "-m", few}), shown);
  expect_fails(1, {"inspect", "-m", folder.file("none.gguf")}, {"none.gguf: no such file"});
  expect_fails(1, {"generate", "-m", plain, "-p", "x", "--draft", "mtp"},
               {"multi-token-prediction"});
}

}  // namespace
}  // namespace replayssm
