// --help of each verb, inspect's figures, bench's JSON.
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/model.h"
#include "process.h"

namespace replayssm {
namespace {

TEST(Help, EveryFlagIsDocumented) {
  const std::map<std::string, std::vector<std::string>> flags = {
      {"generate",
       {"--model", "--prompt", "-n", "--temperature", "--top-k", "--top-p", "--min-p", "--seed",
        "--draft", "--draft-tokens", "--state", "--grid", "--checkpoint-dtype", "--ring-dtype",
        "--threads", "--json", "--device", "--exact"}},
      {"logits",
       {"--model", "--ids", "--ids-file", "--out", "--mode", "--window", "--reject", "--grid",
        "--checkpoint-dtype", "--ring-dtype", "--threads"}},
      {"inspect",
       {"--model", "--grid", "--checkpoint-dtype", "--ring-dtype", "--memory", "--context",
        "--window"}},
      {"bench",
       {"what", "--model", "--grid", "--batch", "--window", "--json", "--threads", "serve",
        "simulate"}},
  };
  const Outcome all = run_binary({"--help"});
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_EQ(all.err, "");
  for (const auto& [verb, names] : flags) {
    EXPECT_NE(all.out.find(verb), std::string::npos);
    const Outcome help = run_binary({verb, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_EQ(help.err, "");
    // Every entry has words beside its name and type, on its line or the next.
    std::istringstream lines(help.out);
    std::map<std::string, std::string> entries;
    std::string line, entry;
    while (std::getline(lines, line)) {
      if (line.size() > 2 && line[0] == ' ' && line[2] != ' ') {
        std::istringstream words(line);
        words >> entry;
        const size_t comma = entry.find(",--");
        if (comma != std::string::npos) entry = entry.substr(comma + 1);
        std::string rest;
        std::getline(words, rest);
        entries[entry] = rest;
      } else if (!entry.empty()) {
        entries[entry] += line;
      }
    }
    for (const auto& name : names) {
      ASSERT_TRUE(entries.contains(name)) << verb << " " << name << "\n" << help.out;
      // After the type, the default and REQUIRED: small letters, so words.
      std::string text = entries[name];
      for (const char* noise : {"TEXT", "REQUIRED", "UINT", "INT", "FLOAT", "..."}) {
        for (size_t at; (at = text.find(noise)) != std::string::npos;) {
          text.erase(at, std::string(noise).size());
        }
      }
      text.erase(0, text.find_first_not_of(' '));
      if (text.starts_with("[")) text.erase(0, text.find(']') + 1);
      const auto letters =
          std::count_if(text.begin(), text.end(), [](char c) { return c >= 'a' && c <= 'z'; });
      EXPECT_GE(letters, 3) << verb << " " << name << ": " << entries[name];
    }
    EXPECT_EQ(entries.size(), names.size() + 1) << "a flag is not in this list\n" << help.out;
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
    const ModelMemory m = model->memory();
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

TEST(Bench, LayersWriteJson) {
  const TempFolder folder;
  const Outcome got = run_binary(
      {"bench", "layers", "--batch", "1", "--window", "1", "--json", folder.file("bench.json")});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  const auto json = nlohmann::json::parse(read_text(folder.file("bench.json")));
  EXPECT_GT(json.at("read_bytes_per_second"), 0);
  EXPECT_GE(json.at("threads"), 1);
  EXPECT_FALSE(json.contains("model"));
  EXPECT_EQ(json.at("layers").size(), 15u);  // three layers in five variants
  for (const auto& entry : json.at("layers")) {
    EXPECT_EQ(entry.at("batch"), 1);
    EXPECT_EQ(entry.at("window"), 1);
    EXPECT_GT(entry.at("us"), 0);
    EXPECT_GT(entry.at("must_move_bytes"), 0);
    EXPECT_NE(got.out.find(entry.at("layer").get<std::string>()), std::string::npos);
  }
}

TEST(Bench, ModelWritesJson) {
  const TempFolder folder;
  const Outcome got =
      run_binary({"bench", "model", "-m", fixture("nemotron_h_bf16"), "--batch", "1,3", "--window",
                  "1,4", "--grid", "8", "--json", folder.file("bench.json")});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  const auto json = nlohmann::json::parse(read_text(folder.file("bench.json")));
  EXPECT_EQ(json.at("model").size(), 20u);
  for (const auto& entry : json.at("model")) EXPECT_GT(entry.at("tokens_per_second"), 0);
}

TEST(Bench, ServeWritesJson) {
  const TempFolder folder;
  const Outcome got =
      run_binary({"bench", "serve", "--batch", "1,3", "--window", "1,4", "--context", "20",
                  "--tokens", "32", "--json", folder.file("bench.json")});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  const auto json = nlohmann::json::parse(read_text(folder.file("bench.json")));
  ASSERT_EQ(json.at("cells").size(), 4u);
  for (const auto& cell : json.at("cells")) {
    EXPECT_GT(cell.at("tokens_per_second"), 0);
    EXPECT_GT(cell.at("ms"), 0);
    EXPECT_GE(cell.at("tokens_a_step"), 1);
    EXPECT_LE(cell.at("tokens_a_step"), cell.at("window"));
    EXPECT_EQ(cell.at("draft"), cell.at("window") == 1 ? "off" : "ngram");
    EXPECT_EQ(cell.at("drafted") > 0, cell.at("window") > 1);
  }
}

}  // namespace
}  // namespace replayssm
