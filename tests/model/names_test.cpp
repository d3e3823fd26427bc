// Files whose tensors other tools have renamed: the same model.
#include <algorithm>
#include <functional>
#include <regex>

#include "edited_model.h"
#include "engine.h"
#include "model/families/family.h"
#include "testing.h"

namespace replayssm {
namespace {

using Rename = std::function<std::string(std::string)>;

std::vector<float> logits_of(const std::string& folder) {
  Engine engine(folder, {});
  return engine.logits({3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, 5, 4);
}

void rename_all(EditedModel& model, const Rename& rename) {
  std::map<std::string, TensorToWrite> renamed;
  for (auto& [name, tensor] : model.tensors()) {
    tensor.name = rename(name);
    renamed[tensor.name] = tensor;
  }
  model.tensors() = renamed;
}

// Puts `to` in place of the prefix `from`; other names get `others` before them.
Rename prefixed(const std::string& from, const std::string& to, const std::string& others = "") {
  return [=](const std::string& name) {
    return name.starts_with(from) ? to + name.substr(from.size()) : others + name;
  };
}

void add_tensor(EditedModel& model, const std::string& name, FileDType dtype = FileDType::kF32) {
  static const std::array<float, 8> kValues{};
  model.tensors()[name] = {name, dtype, {2}, kValues.data()};
}

TEST(Names, PrefixesOfQwen) {
  for (const char* name : {"qwen3_5_untied", "qwen3_5_moe"}) {
    const auto want = logits_of(fixture(name));
    const std::vector<Rename> tools = {
        prefixed("model.", ""),
        prefixed("model.", "model.language_model."),
        prefixed("model.", "language_model.model.", "language_model."),
        prefixed("model.", "model.language_model.model."),
        prefixed("model.", "transformer."),
        prefixed("model.", "base_model.model.model.", "base_model.model."),
        prefixed("model.", "module._orig_mod.model.", "module._orig_mod."),
        prefixed("model.", "thinker.model.", "thinker."),
    };
    for (const Rename& rename : tools) {
      EditedModel model(name);
      rename_all(model, rename);
      EXPECT_EQ(logits_of(model.write()), want) << name << " " << model.tensors().begin()->first;
    }
  }
}

TEST(Names, PrefixesAndModulesOfNemotron) {
  for (const char* name : {"nemotron_h_pattern", "nemotron_h_latent", "nemotron_h_fp8"}) {
    const auto want = logits_of(fixture(name));
    const std::vector<Rename> tools = {
        prefixed("backbone.", "model."),  // as transformers 5 saves it again
        prefixed("backbone.", ""),
        prefixed("backbone.", "language_model.backbone.", "language_model."),
        prefixed("backbone.embeddings.", "backbone.embedding."),
        [](const std::string& own) {
          return std::regex_replace(
              std::regex_replace(own, std::regex("^backbone\\.embeddings"), "model.embed_tokens"),
              std::regex("^backbone\\.(norm_f)?"), std::string("model.$1"));
        },
        [](const std::string& own) {
          return std::regex_replace(own, std::regex("backbone\\.norm_f"), "backbone.norm");
        },
    };
    for (const Rename& rename : tools) {
      EditedModel model(name);
      rename_all(model, rename);
      EXPECT_EQ(logits_of(model.write()), want) << name << " " << model.tensors().begin()->first;
    }
  }
}

// transformers 5 keeps the experts of a layer as one tensor; its older files, one by one.
TEST(Names, FusedExpertsOfNemotron) {
  const auto want = logits_of(fixture("nemotron_h_moe"));
  EditedModel model("nemotron_h_moe");
  std::map<std::string, std::vector<std::byte>> fused;
  std::map<std::string, TensorToWrite> kept;
  const std::regex expert("(.*experts)\\.(\\d+)\\.(up|down)_proj\\.weight");
  for (int e = 0; e < 64; ++e) {
    for (const auto& [name, tensor] : model.tensors()) {
      std::smatch match;
      if (!std::regex_match(name, match, expert) || std::stoi(match[2]) != e) continue;
      const std::string to = match[1].str() + "." + match[3].str() + "_proj";
      auto& bytes = fused[to];
      const auto* data = static_cast<const std::byte*>(tensor.data);
      const int64_t n = tensor.shape[0] * tensor.shape[1] * file_dtype_bytes(tensor.dtype);
      bytes.insert(bytes.end(), data, data + n);
      kept[to] = {to, tensor.dtype, {e + 1, tensor.shape[0], tensor.shape[1]}, nullptr};
    }
  }
  for (auto& [name, tensor] : kept) tensor.data = fused.at(name).data();
  for (const auto& [name, tensor] : model.tensors()) {
    if (!std::regex_match(name, expert)) kept[name] = tensor;
  }
  ASSERT_FALSE(fused.empty());
  model.tensors() = kept;
  EXPECT_EQ(logits_of(model.write()), want);
}

TEST(Names, BuffersAndOtherPartsAreSkipped) {
  const auto want = logits_of(fixture("qwen3_5_untied"));
  EditedModel model("qwen3_5_untied");
  for (const char* name :
       {"model.layers.3.self_attn.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq",
        "model.layers.0.linear_attn.masked_bias", "model.norm.num_batches_tracked",
        "mtp.layers.0.input_layernorm.weight", "model.mtp.fc.weight", "visual.blocks.0.attn.weight",
        "model.visual.patch_embed.weight", "vision_tower.layers.0.norm.weight",
        "audio_tower.layers.0.self_attn.k_proj.weight", "multi_modal_projector.linear.weight"}) {
    add_tensor(model, name);
  }
  add_tensor(model, "model.layers.3.self_attn.bias", FileDType::kBool);
  EXPECT_EQ(logits_of(model.write()), want);
  EXPECT_EQ(weights_of(model.write()).skipped.size(), 12u);
  // What no rule knows is not passed over.
  add_tensor(model, "model.layers.3.self_attn.gain");
  model.expect_refused({"'model.layers.3.self_attn.gain'", "no place"});
  model.tensors().erase("model.layers.3.self_attn.gain");
  add_tensor(model, "extra.weight");
  model.expect_refused({"'extra.weight'", "no place"});
}

// In a wrapper's file whatever stands beside the text model is another part.
TEST(Names, WrappersSkipWhatStandsBeside) {
  const auto want = logits_of(fixture("nemotron_h_pattern"));
  EditedModel model("nemotron_h_pattern");
  rename_all(model, prefixed("backbone.", "language_model.backbone.", "language_model."));
  for (const char* name : {"mlp1.0.weight", "mlp1.1.bias", "sound_projection.linear1.weight",
                           "vision_model.radio_model.model.blocks.0.attn.qkv.weight",
                           "language_model.mtp.layers.0.norm.weight"}) {
    add_tensor(model, name);
  }
  model.config() =
      R"({"model_type": "NemotronH_Nano_VL_V2", "llm_config": )" + model.config() + "}";
  const std::string& folder = model.write();
  EXPECT_EQ(logits_of(folder), want);
  EXPECT_EQ(describe_model(folder).names.skipped_prefixes,
            (std::vector<std::string>{"language_model.mtp.", "mlp1.", "sound_projection.",
                                      "vision_model."}));
  add_tensor(model, "language_model.backbone.layers.0.mixer.gain");
  model.expect_refused({"'language_model.backbone.layers.0.mixer.gain'", "no place"});
}

TEST(Names, MissingTensorsKeepTheNamesOfTheirKind) {
  EditedModel model("qwen3_5_untied");
  rename_all(model, prefixed("model.", "model.language_model."));
  model.tensors().erase("model.language_model.layers.2.mlp.up_proj.weight");
  model.expect_refused({"has no tensor 'model.language_model.layers.2.mlp.up_proj.weight'"});
}

}  // namespace
}  // namespace replayssm
