// generation_config.json: how a model's publisher would have it sampled.
#pragma once

#include <cstdint>
#include <string>

namespace replayssm {

struct SamplingDefaults {
  double temperature = 1.0;
  int32_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
};

// Of a folder; without the file, the values above. What means "off" elsewhere is off here: null, a
// top_k of 0 or -1, a top_p of 0 or from 1 on, a min_p below 0; do_sample false is temperature 0,
// whatever stands beside it. Fields that are not of SamplingDefaults are not looked at.
SamplingDefaults read_sampling_defaults(const std::string& folder);

}  // namespace replayssm
