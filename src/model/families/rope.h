// How a config.json tells of rotary positions, under all its spellings.
#pragma once

#include "model/config.h"
#include "model/spec.h"

namespace replayssm {

// Reads theta, the rotated share of a head (`partial` where the file names none) and the scaling
// into `attention`, whose head_dim is set. Fields are looked for in rope_scaling, then in
// rope_parameters (for layers of full attention, where it has a table for each layer type), then
// beside them. YaRN may raise `max_positions`. Refuses other scalings than linear and YaRN.
void read_rope(const ConfigObject& config, double partial, AttentionSpec& attention,
               int64_t& max_positions);

}  // namespace replayssm
