// Loading whole folders: what is accepted, what is refused, and what a load costs.
#include <array>
#include <cmath>
#include <functional>
#include <map>

#include "edited_model.h"
#include "engine.h"
#include "model/parameters.h"
#include "testing.h"

namespace replayssm {
namespace {

std::shared_ptr<const Model> load(const std::string& folder, ModelOptions options = {}) {
  return Model::load(folder, options);
}

std::vector<float> all_logits(const std::string& folder, const ModelOptions& options) {
  Engine engine(folder, options);
  return engine.logits({3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3}, 5, 4);
}

constexpr const char* kEmbedding = "model.embed_tokens.weight";

// Tools drop the convolution's dimension of 1, or put it last.
TEST(Load, ConvolutionsInOtherShapes) {
  const auto want = all_logits(fixture("qwen3_5_untied"), {});
  for (const bool with_one : {false, true}) {
    EditedModel model("qwen3_5_untied");
    size_t n = 0;
    for (auto& [name, tensor] : model.tensors()) {
      if (!name.ends_with("conv1d.weight")) continue;
      tensor.shape = {tensor.shape[0], tensor.shape[2]};
      if (with_one) tensor.shape.push_back(1);
      ++n;
    }
    EXPECT_GT(n, 0u);
    EXPECT_EQ(all_logits(model.write(), {}), want);
  }
}

// Scales of an FP8 KV cache, by either name that publishers give them.
TEST(Load, SkipsScalesOfTheKvCache) {
  EditedModel model("qwen3_5_untied");
  const float value = 1.0f;
  for (const char* name : {"self_attn.k_scale", "self_attn.v_proj.v_scale"}) {
    const std::string full = concat("model.layers.3.", name);
    model.tensors()[full] = {full, FileDType::kF32, {1}, &value};
  }
  EXPECT_EQ(weights_of(model.write()).skipped.size(), 2u);
}

TEST(Load, ListsWhatItSkips) {
  EXPECT_EQ(weights_of(fixture("qwen3_5_vlm")).skipped.size(), 4u);
  EXPECT_TRUE(weights_of(fixture("nemotron_h_pattern")).skipped.empty());
}

TEST(Load, TiedWithoutHeadAndTiedWithEqualHeadAreTheSame) {
  EditedModel model("qwen3_5_tied");
  const auto absent = all_logits(model.write(), {});
  auto head = model.tensors().at(kEmbedding);
  head.name = "lm_head.weight";
  model.tensors()["lm_head.weight"] = head;
  EXPECT_EQ(all_logits(model.write(), {}), absent);
}

TEST(Load, RefusesTiedWithAnotherHead) {
  EditedModel model("qwen3_5_tied");
  auto head = model.tensors().at(kEmbedding);
  std::vector<float> other(120 * 40, 0.5f);
  head.name = "lm_head.weight";
  head.data = other.data();
  model.tensors()["lm_head.weight"] = head;
  model.expect_refused({"model.safetensors", "'lm_head.weight'", "tie_word_embeddings is true"});
  model.tensors()["lm_head.weight"].shape = {40, 120};
  model.expect_refused({"'lm_head.weight'", "[40, 120]", "[120, 40]"});
}

TEST(Load, RefusesUntiedWithoutHead) {
  EditedModel model("qwen3_5_untied");
  model.tensors().erase("lm_head.weight");
  model.expect_refused({"'lm_head.weight'", "tie_word_embeddings is false"});
}

TEST(Load, RefusesMissingAndUnknownTensors) {
  for (const char* name :
       {"qwen3_5_tied", "nemotron_h_pattern", "qwen3_5_moe_fused", "nemotron_h_latent"}) {
    const TensorFiles files = TensorFiles::open_folder(fixture(name));
    for (const auto& tensor : files.tensors()) {
      EditedModel model(name);
      model.tensors().erase(tensor.name);
      model.expect_refused({"model.safetensors", "'" + tensor.name + "'"});
    }
  }
  EditedModel model("nemotron_h_pattern");
  const float value = 1.0f;
  model.tensors()["mtp.layers.0.norm.weight"] = {
      "mtp.layers.0.norm.weight", FileDType::kF32, {1}, &value};
  EXPECT_EQ(weights_of(model.write()).skipped.size(), 1u);
  model.tensors()["backbone.layers.9.norm.weight"] = {
      "backbone.layers.9.norm.weight", FileDType::kF32, {1}, &value};
  model.expect_refused({"model.safetensors", "'backbone.layers.9.norm.weight'", "no place"});
}

TEST(Load, RefusesWrongShapesAndTypes) {
  for (const char* name :
       {"qwen3_5_tied", "nemotron_h_pattern", "qwen3_5_moe_fused", "qwen3_next"}) {
    const TensorFiles files = TensorFiles::open_folder(fixture(name));
    for (const auto& tensor : files.tensors()) {
      EditedModel reshaped(name);
      reshaped.tensors()[tensor.name].shape = {tensor.n_elements(), 1, 1, 1};
      reshaped.expect_refused({"model.safetensors", "'" + tensor.name + "'", "shape"});
      EditedModel retyped(name);
      retyped.tensors()[tensor.name].dtype = FileDType::kI32;
      retyped.expect_refused({"model.safetensors", "'" + tensor.name + "'", "I32"});
    }
  }
}

TEST(Load, RefusesExpertsOfAnotherShape) {
  for (const auto& [name, field, tensor, has, needs] :
       {std::array{"qwen3_next", "\"moe_intermediate_size\": 2", "experts.0.gate_proj.weight",
                   "[24, 40]", "[14, 40]"},
        std::array{"qwen3_5_moe_fused", "\"num_experts\": ", "mlp.gate.weight", "[8, 40]",
                   "[18, 40]"},
        std::array{"nemotron_h_latent", "\"moe_latent_size\": 2", "experts.0.up_proj.weight",
                   "[24, 24]", "[24, 14]"}}) {
    EditedModel model(name);
    std::string to = field;
    if (to.back() == '2') to.pop_back();
    model.config() = replaced(model.config(), field, to + "1");
    model.expect_refused({"model.safetensors", tensor, has, needs});
  }
}

TEST(Load, RefusesBrokenFolders) {
  const TempFolder folder;
  folder.copy_fixture("nemotron_h_pattern");
  const std::string path = folder.file("model.safetensors");
  const std::string whole = read_text(path);
  const auto refuse = [&](const std::string& bytes, std::initializer_list<std::string> parts) {
    write_text(path, bytes);
    expect_refusal({path}, [&] { load(folder.path()); });
    expect_refusal(parts, [&] { load(folder.path()); });
  };
  refuse(whole.substr(0, whole.size() - 1), {"cut short", "tensor '"});
  refuse(whole.substr(0, whole.size() / 2), {"cut short", "tensor '"});
  refuse("version https://git-lfs.github.com/spec/v1\n", {"Git LFS"});
  refuse("", {"0 bytes"});
  std::filesystem::remove(path);
  std::filesystem::remove(folder.file("golden.safetensors"));  // else it would be the only file
  expect_refusal({folder.path(), "model.safetensors"}, [&] { load(folder.path()); });

  const TempFolder shards;
  shards.copy_fixture("qwen3_5_vlm");
  std::filesystem::remove(shards.file("model-00002-of-00002.safetensors"));
  expect_refusal({"model-00002-of-00002.safetensors", "missing", "tensor '"},
                 [&] { load(shards.path()); });
}

TEST(Load, RefusesOptionsThatCannotRun) {
  const std::string folder = fixture("nemotron_h_pattern");
  ModelOptions options;
  options.interval = 12;
  expect_refusal({"12", "8, 16, 32 or 64"}, [&] { load(folder, options); });
  options.interval = 8;
  options.max_window = 9;
  expect_refusal({"9", "[1, 8]"}, [&] { load(folder, options); });
  options.max_window = 0;
  expect_refusal({"[1, 8]"}, [&] { load(folder, options); });
  options.max_window = 8;
  options.activation = DType::kF16;
  expect_refusal({"fp16"}, [&] { load(folder, options); });
  options.activation.reset();
  options.ring = DType::kI8;
  expect_refusal({"layer 0 of nemotron_h cannot run"},
                 [&] { plan_layers_cpu(*load(folder, options), best_isa()); });
}

TEST(Load, TypesFollowTheFile) {
  const auto expect = [](const char* name, DType activation, DType ring, DType checkpoint) {
    const auto model = load(fixture(name));
    EXPECT_EQ(model->activation(), activation);
    EXPECT_EQ(model->ring(), ring);
    EXPECT_EQ(model->checkpoint(), checkpoint);
  };
  expect("qwen3_5_tied", DType::kF32, DType::kF32, DType::kF32);
  expect("nemotron_h_names", DType::kF32, DType::kF32, DType::kF32);
  expect("qwen3_5_bf16", DType::kBF16, DType::kF16, DType::kF16);
  expect("nemotron_h_bf16", DType::kBF16, DType::kBF16, DType::kF16);
  ModelOptions options;
  options.activation = DType::kBF16;
  EXPECT_EQ(load(fixture("qwen3_5_tied"), options)->activation(), DType::kBF16);
}

// What counts from the shape alone is what the files hold.
TEST(Load, ParametersAreThoseOfTheSpec) {
  for (const char* name :
       {"qwen3_5_tied", "qwen3_5_vlm", "nemotron_h_types", "qwen3_5_moe", "qwen3_5_moe_fused",
        "qwen3_next", "nemotron_h_moe", "nemotron_h_latent", "qwen3_5_fp8", "nemotron_h_fp8"}) {
    const auto model = load(fixture(name));
    EXPECT_EQ(count_parameters(model->spec()).total, weights_of(fixture(name)).n_parameters)
        << name;
  }
}

// The same numbers as F16 and as F32 give the same bits with fp32 activations.
TEST(Load, HalfWeightsWidenExactly) {
  EditedModel half("nemotron_h_bf16"), wide("nemotron_h_bf16");
  std::vector<std::vector<uint16_t>> halves;
  std::vector<std::vector<float>> floats;
  for (auto& [name, tensor] : half.tensors()) {
    int64_t n = 1;
    for (const int64_t dim : tensor.shape) n *= dim;
    auto& h = halves.emplace_back();
    auto& f = floats.emplace_back();
    for (int64_t i = 0; i < n; ++i) {  // any finite halves of moderate size
      h.push_back(static_cast<uint16_t>((i * 7919 & 0x83ff) | 0x2c00 | (i % 3 << 8)));
    }
    tensor.dtype = FileDType::kF16;
    tensor.data = h.data();
    TensorView view;
    view.dtype = FileDType::kF16;
    view.data = reinterpret_cast<const std::byte*>(h.data());
    view.bytes = 2 * n;
    f = read_fp32(view);
    wide.tensors()[name].dtype = FileDType::kF32;
    wide.tensors()[name].data = f.data();
  }
  ModelOptions options;
  options.activation = options.checkpoint = options.ring = DType::kF32;
  EXPECT_EQ(load(half.write())->activation(), DType::kBF16);
  const auto logits = all_logits(half.write(), options);
  EXPECT_TRUE(std::isfinite(logits[0]));
  EXPECT_EQ(logits, all_logits(wide.write(), options));
}

// A header length that leaves every tensor at an odd address.
TEST(Load, UnalignedData) {
  const TempFolder folder;
  for (const char* name : {"nemotron_h_bf16", "qwen3_5_tied"}) {
    folder.copy_fixture(name);
    const auto aligned = all_logits(folder.path(), {});
    std::string bytes = read_text(folder.file("model.safetensors"));
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    bytes.insert(8 + header, 1, ' ');
    ++header;
    std::memcpy(bytes.data(), &header, 8);
    write_text(folder.file("model.safetensors"), bytes);
    EXPECT_EQ(all_logits(folder.path(), {}), aligned);
    for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
      std::filesystem::remove(file.path());
    }
  }
}

TEST(Load, MemoryIsWhatThePoolsTake) {
  for (const char* name : {"qwen3_5_untied", "nemotron_h_bf16"}) {
    ModelOptions options;
    options.checkpoint = DType::kI8;
    options.ring = DType::kF16;
    const auto model = load(fixture(name), options);
    const CpuLayers layers = plan_layers_cpu(*model, best_isa());
    ModelMemory memory = memory_of(layers.sizes);
    HostArena state;
    take_pool(layers.sizes, {5, 3, 7}, state);
    EXPECT_EQ(state.used(), 5 * memory.checkpoint_slot + 3 * (memory.ring_slot + memory.conv_slot) +
                                7 * memory.kv_page);
    EXPECT_EQ(memory.ring_slot, memory.ring_token * model->grid().ring_rows);
    EXPECT_GE(memory.kv_page, memory.kv_token * ops::kKvPage);
    memory.weights = weight_bytes_cpu(*model);
    EXPECT_EQ(memory.weights, weights_of(fixture(name)).bytes);
    EXPECT_GT(memory.weights, 0);
  }
}

TEST(Load, ProgressSaysHowFar) {
  EXPECT_EQ(progress_text(2'100'000'000, 8'400'000'000, 2.0),
            "loading 2.1 of 8.4 GB, 1.05 GB/s, 6 s left");
  EXPECT_EQ(progress_text(0, 8'400'000'000, 0.0), "loading 0.0 of 8.4 GB, 0.00 GB/s");
}

}  // namespace
}  // namespace replayssm
