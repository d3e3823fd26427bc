// The shapes that steps are rounded up to: few, so that each has its graph.
#pragma once

#include <vector>

#include "model/forward.h"
#include "runtime/cuda/pass_block.h"

namespace replayssm {

// The least shape that holds `needs`: a pass of steps alone, a row of logits a token, within the
// limits. Rows and tokens grow by halves of powers of two; tokens are at least a quarter of what
// the rows may have.
PassShape step_shape(const PassShape& needs, const ForwardLimits& limits, int32_t max_window);

// All that step_shape() gives.
std::vector<PassShape> step_shapes(const ForwardLimits& limits, int32_t max_window);

}  // namespace replayssm
