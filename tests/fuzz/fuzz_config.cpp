// Any bytes as a config.json: either an Error of one line, or a description whose sizes are
// bounded.
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "model/families/family.h"
#include "model/parameters.h"

namespace {

replayssm::ModelDescription describe_any(const replayssm::ConfigObject& config) {
  return replayssm::describe_config(config);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace replayssm;
  const std::string text(reinterpret_cast<const char*>(data), size);
  // Each family, and whatever the text says itself, nested or not.
  for (const auto describe : {describe_qwen3_5, describe_qwen3_5_moe, describe_qwen3_next,
                              describe_nemotron_h, describe_any}) {
    try {
      const ModelDescription model = describe(ConfigObject::parse(text, "fuzz"));
      if (model.spec.hidden < 1 || model.spec.vocab < 1 || model.spec.max_positions < 1) {
        std::abort();
      }
      if (model.names.mixers.size() != model.spec.layers.size()) std::abort();
      const ParameterCount count = count_parameters(model.spec);
      if (count.active < 1 || count.active > count.total) std::abort();
      for (const auto& layer : model.spec.layers) {
        for (const auto& mixer : layer.mixers) {
          const auto* moe = std::get_if<MoeSpec>(&mixer);
          if (moe == nullptr) continue;
          const int32_t group = moe->n_experts / moe->n_groups;
          if (moe->top_k < 1 || moe->top_k > moe->top_groups * group) std::abort();
        }
      }
    } catch (const Error& error) {
      if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
    }
  }
  return 0;
}
