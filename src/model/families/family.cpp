#include "model/families/family.h"

#include <filesystem>

#include "model/families/bounds.h"

namespace replayssm {
namespace {

struct FamilyRow {
  const char* model_type;
  ModelDescription (*describe)(const ConfigObject& config);
};
constexpr FamilyRow kFamilies[] = {
    {"qwen3_5", describe_qwen3_5},         {"qwen3_5_text", describe_qwen3_5},
    {"qwen3_5_moe", describe_qwen3_5_moe}, {"qwen3_5_moe_text", describe_qwen3_5_moe},
    {"qwen3_next", describe_qwen3_next},   {"nemotron_h", describe_nemotron_h},
};

}  // namespace

ModelDescription describe_config(const std::string& path) {
  const ConfigObject config = ConfigObject::read_file(path);
  const std::string type = config.text("model_type");
  std::string known;
  for (const auto& family : kFamilies) {
    known += concat(known.empty() ? "" : ", ", family.model_type);
    if (type != family.model_type) continue;
    ModelDescription out = family.describe(config);
    out.spec.model_type = type;
    return out;
  }
  config.refuse("model_type", "is '", type, "'; known are ", known);
}

ModelDescription describe_model(const std::string& folder) {
  ModelDescription out = describe_config(folder + "/config.json");
  const std::string generation = folder + "/generation_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(generation, ignored)) {
    const auto ids = read_eos(ConfigObject::read_file(generation), out.spec.vocab);
    if (!ids.empty()) out.spec.eos_ids = ids;
  }
  return out;
}

}  // namespace replayssm
