#include "model/generation_config.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "model/config.h"

namespace replayssm {

SamplingDefaults read_sampling_defaults(const std::string& folder) {
  constexpr double kLarge = 1e18;
  SamplingDefaults out;
  const std::string path = folder + "/generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return out;
  const ConfigObject config = ConfigObject::read_file(path);
  if (!config.boolean_or("do_sample", true)) {
    out.temperature = 0;
    return out;
  }
  out.temperature = config.number_or("temperature", out.temperature, 0, 100);
  const double top_k = config.number_or("top_k", 0, -kLarge, kLarge);
  constexpr double kMaxTopK = std::numeric_limits<int32_t>::max();
  out.top_k = static_cast<int32_t>(std::clamp(top_k, 0.0, kMaxTopK));
  const double top_p = config.number_or("top_p", 1, -1, kLarge);
  out.top_p = top_p <= 0 ? 1.0 : std::clamp(top_p, 1e-6, 1.0);
  out.min_p = std::max(config.number_or("min_p", 0, -kLarge, 1), 0.0);
  out.repetition_penalty = config.number_or("repetition_penalty", 1, 0.01, 100);
  return out;
}

}  // namespace replayssm
