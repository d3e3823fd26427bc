#include "model/families/family.h"

#include <algorithm>
#include <filesystem>

#include "model/families/bounds.h"
#include "model/families/names.h"
#include "model/quantization.h"

namespace replayssm {
namespace {

struct FamilyRow {
  const char* model_type;
  ModelDescription (*describe)(const ConfigObject& text);
};
constexpr FamilyRow kFamilies[] = {
    {"qwen3_5", describe_qwen3_5},         {"qwen3_5_text", describe_qwen3_5},
    {"qwen3_5_moe", describe_qwen3_5_moe}, {"qwen3_5_moe_text", describe_qwen3_5_moe},
    {"qwen3_next", describe_qwen3_next},   {"nemotron_h", describe_nemotron_h},
};

constexpr const char* kTextFields[] = {"text_config", "llm_config", "language_config",
                                       "thinker_config"};
constexpr size_t kMaxNesting = 4;

// The configuration and those nested in it down to the text model's, which comes last.
std::vector<ConfigObject> chain_of(const ConfigObject& config) {
  std::vector<ConfigObject> chain = {config};
  while (chain.size() < kMaxNesting) {
    const auto field =
        std::find_if(std::begin(kTextFields), std::end(kTextFields),
                     [&](const char* name) { return chain.back().has_object(name); });
    if (field == std::end(kTextFields)) break;
    chain.push_back(chain.back().object(*field));
  }
  return chain;
}

std::string plain_letters(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z') out += static_cast<char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) out += c;
  }
  return out;
}

// The family whose name a wrapper's begins with: "NemotronH_Nano_VL_V2" wraps nemotron_h.
const FamilyRow* family_of_wrapper(const std::string& type) {
  const FamilyRow* best = nullptr;
  size_t best_length = 0;
  for (const auto& family : kFamilies) {
    const std::string letters = plain_letters(family.model_type);
    if (!plain_letters(type).starts_with(letters) || letters.size() <= best_length) continue;
    best = &family;
    best_length = letters.size();
  }
  return best;
}

const FamilyRow& family_of(const std::vector<ConfigObject>& chain) {
  for (auto config = chain.rbegin(); config != chain.rend(); ++config) {
    if (!config->has("model_type")) continue;
    const std::string type = config->text("model_type");
    for (const auto& family : kFamilies) {
      if (type == family.model_type) return family;
    }
    const FamilyRow* wrapped = config != chain.rbegin() ? family_of_wrapper(type) : nullptr;
    if (wrapped != nullptr) return *wrapped;
    std::string known;
    for (const auto& family : kFamilies) {
      known += concat(known.empty() ? "" : ", ", family.model_type);
    }
    config->refuse("model_type", "is '", type, "'; known are ", known);
  }
  chain.front().refuse("model_type", "is missing");
}

void add_ids(const std::vector<int32_t>& ids, std::vector<int32_t>& to) {
  for (const int32_t id : ids) {
    if (std::find(to.begin(), to.end(), id) == to.end()) to.push_back(id);
  }
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

ModelDescription describe_shape(const std::string& folder) {
  ModelDescription out = describe_config(folder + "/config.json");
  const std::string generation = folder + "/generation_config.json";
  if (exists(generation)) {
    add_ids(read_eos(ConfigObject::read_file(generation), out.spec.vocab), out.spec.eos_ids);
  }
  return out;
}

// Files without the drafting head that config.json names are as good: the head is left out.
void name_tensors(const std::string& folder, const TensorFiles& files, ModelDescription& out) {
  resolve_names(files, out.names);
  if (!out.names.mtp) out.spec.mtp.reset();
  check_formats(folder, files, out.names.skipped_prefixes);
}

}  // namespace

ModelDescription describe_config(const ConfigObject& config) {
  const std::vector<ConfigObject> chain = chain_of(config);
  const FamilyRow& family = family_of(chain);
  ModelDescription out = family.describe(chain.back());
  out.spec.model_type = family.model_type;
  out.names.wrapped = chain.size() > 1;
  for (auto level = chain.rbegin(); level != chain.rend(); ++level) {
    // The outer value wins, as in the code that publishes such files.
    out.spec.tied = level->boolean_or("tie_word_embeddings", out.spec.tied);
    add_ids(read_eos(*level, out.spec.vocab), out.spec.eos_ids);
  }
  return out;
}

ModelDescription describe_config(const std::string& path) {
  return describe_config(ConfigObject::read_file(path));
}

ModelDescription describe_model(const std::string& folder) {
  ModelDescription out = describe_shape(folder);
  if (TensorFiles::in_folder(folder)) name_tensors(folder, TensorFiles::open_folder(folder), out);
  return out;
}

ModelDescription describe_model(const std::string& folder, const TensorFiles& files) {
  ModelDescription out = describe_shape(folder);
  name_tensors(folder, files, out);
  return out;
}

}  // namespace replayssm
