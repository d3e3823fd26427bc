// From what a user writes to a folder; what a publisher's generation_config.json asks for.
#include "model/model_folder.h"

#include <cstdlib>

#include "model/generation_config.h"
#include "testing.h"

namespace replayssm {
namespace {

namespace fs = std::filesystem;

// The cache in which names are looked up is the folder's.
class Cache : public ::testing::Test {
 protected:
  Cache() { setenv("HF_HUB_CACHE", folder_.path().c_str(), 1); }
  ~Cache() override { unsetenv("HF_HUB_CACHE"); }

  std::string add(const std::string& repository, const std::string& hash) {
    const fs::path snapshot = fs::path(folder_.path()) / repository / "snapshots" / hash;
    fs::create_directories(snapshot);
    write_text((snapshot / "config.json").string(), "{}");
    return snapshot.string();
  }

  TempFolder folder_;
};

TEST_F(Cache, NamesOfTheHub) {
  expect_refusal({"Qwen/Qwen3.5-4B: no such folder", folder_.file("models--Qwen--Qwen3.5-4B"),
                  "hf download Qwen/Qwen3.5-4B"},
                 [] { find_model("Qwen/Qwen3.5-4B"); });
  const std::string old = add("models--Qwen--Qwen3.5-4B", "aaa");
  EXPECT_EQ(find_model("Qwen/Qwen3.5-4B"), old);
  EXPECT_EQ(find_model(folder_.file("models--Qwen--Qwen3.5-4B")), old);
  const std::string main = add("models--Qwen--Qwen3.5-4B", "bbb");
  fs::create_directories(folder_.file("models--Qwen--Qwen3.5-4B/refs"));
  write_text(folder_.file("models--Qwen--Qwen3.5-4B/refs/main"), "bbb\n");
  EXPECT_EQ(find_model("Qwen/Qwen3.5-4B"), main);
  EXPECT_EQ(find_model(old), old);
  EXPECT_EQ(model_name(old), "Qwen/Qwen3.5-4B");
  EXPECT_EQ(model_name(main + "/"), "Qwen/Qwen3.5-4B");
  EXPECT_EQ(model_name(add("models--nvidia--A--B", "ccc")), "nvidia/A--B");
}

TEST(ModelFolder, OddPaths) {
  expect_refusal({"is empty"}, [] { find_model(""); });
  expect_refusal({"/no/such/model: no such folder"}, [] { find_model("/no/such/model"); });
  expect_refusal({"Qwen3.5-4B: no such folder"}, [] { find_model("Qwen3.5-4B"); });
  const TempFolder folder;
  const auto refuse = [&](std::initializer_list<std::string> parts) {
    expect_refusal(parts, [&] { find_model(folder.path()); });
    expect_refusal({folder.path()}, [&] { find_model(folder.path()); });
  };
  refuse({"no config.json; a model's folder"});
  fs::create_directory(folder.file("inner"));
  write_text(folder.file("inner/config.json"), "{}");
  refuse({"give " + folder.file("inner")});
  EXPECT_EQ(find_model(folder.file("inner")), folder.file("inner"));
  EXPECT_EQ(model_name(folder.file("inner")), "inner");
  expect_refusal({"config.json: is a file; give the model's folder, " + folder.file("inner") +
                  " or a .gguf file"},
                 [&] { find_model(folder.file("inner/config.json")); });
  write_text(folder.file("params.json"), "{}");
  refuse({"params.json"});
  write_text(folder.file("model-q4_k_m.gguf"), "GGUF");
  refuse({"holds GGUF files; give one of them"});
  EXPECT_EQ(find_model(folder.file("model-q4_k_m.gguf")), folder.file("model-q4_k_m.gguf"));
  EXPECT_EQ(model_name(folder.file("model-q4_k_m.gguf")), "model-q4_k_m");
  EXPECT_EQ(model_name(folder.file("model-q4_k_m-00002-of-00003.gguf")), "model-q4_k_m");
  expect_refusal({"some/model.gguf: no such file"}, [] { find_model("some/model.gguf"); });
  write_text(folder.file("adapter_config.json"), "{}");
  refuse({"adapter", "merge it"});
}

SamplingDefaults defaults_of(const std::string& text) {
  const TempFolder folder;
  write_text(folder.file("generation_config.json"), text);
  return read_sampling_defaults(folder.path());
}

TEST(GenerationConfig, OffIsOff) {
  const auto off = [](const std::string& text) {
    const SamplingDefaults got = defaults_of(text);
    EXPECT_EQ(got.temperature, 1.0) << text;
    EXPECT_EQ(got.top_k, 0) << text;
    EXPECT_EQ(got.top_p, 1.0) << text;
    EXPECT_EQ(got.min_p, 0.0) << text;
    EXPECT_EQ(got.repetition_penalty, 1.0) << text;
  };
  off("{}");
  for (const char* text :
       {R"({"top_k": -1})", R"({"top_k": 0})", R"({"top_k": null})", R"({"top_k": 0.0})",
        R"({"temperature": null})", R"({"top_p": null})", R"({"top_p": 1.0})", R"({"top_p": 1})",
        R"({"top_p": 0})", R"({"top_p": 1.5})", R"({"min_p": null})", R"({"min_p": 0})",
        R"({"min_p": -1})", R"({"repetition_penalty": null})", R"({"repetition_penalty": 1})",
        R"({"do_sample": null, "typical_p": -3, "guidance_scale": "x", "watermark": {}})",
        R"({"max_new_tokens": null, "length_penalty": NaN, "bad_words_ids": [[1]]})"}) {
    off(text);
  }
  EXPECT_EQ(defaults_of(R"({"temperature": 0})").temperature, 0.0);
  for (const char* text :
       {R"({"do_sample": false, "temperature": null, "top_p": 0.0, "top_k": -1})",
        R"({"do_sample": false, "temperature": 0, "top_k": "x"})", R"({"do_sample": false})"}) {
    EXPECT_EQ(defaults_of(text).temperature, 0.0) << text;
    EXPECT_EQ(defaults_of(text).top_k, 0) << text;
  }
}

TEST(GenerationConfig, Values) {
  const SamplingDefaults got = defaults_of(
      R"({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty":
          1.05, "do_sample": true})");
  EXPECT_EQ(got.temperature, 0.6);
  EXPECT_EQ(got.top_k, 20);
  EXPECT_EQ(got.top_p, 0.95);
  EXPECT_EQ(got.min_p, 0.05);
  EXPECT_EQ(got.repetition_penalty, 1.05);
  EXPECT_EQ(defaults_of(R"({"top_k": 1e12})").top_k, INT32_MAX);
  const TempFolder none;
  EXPECT_EQ(read_sampling_defaults(none.path()).temperature, 1.0);
  for (const char* field : {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"}) {
    const std::string text = concat("{\"", field, "\": \"x\"}");
    expect_refusal({"generation_config.json", field}, [&] { defaults_of(text); });
  }
  expect_refusal({"generation_config.json", "temperature is -1"},
                 [&] { defaults_of(R"({"temperature": -1})"); });
  expect_refusal({"generation_config.json", "do_sample"},
                 [&] { defaults_of(R"({"do_sample": 1})"); });
}

}  // namespace
}  // namespace replayssm
