// Text from one prompt: prefill, then windows of the last token and its drafts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ops/sample.h"
#include "runtime/draft.h"
#include "runtime/runner.h"

namespace replayssm {

struct GenerateParams {
  int64_t max_new_tokens = 128;
  int32_t draft_tokens = 4;  // K; counts only with drafts
  bool mtp = false;          // the model's own head drafts, in place of a drafter
  ops::SamplerParams sampling;
  std::vector<int32_t> stop_ids;  // end the text; not part of it
};

struct GenerateStats {
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
  int64_t steps = 0;     // passes of the target after the prefill
  int64_t drafted = 0;   // proposed ids
  int64_t accepted = 0;  // of them, those that stand
  // Of steps with i + 1 drafts at least: how many, and in how many of them all these stood.
  std::vector<int64_t> drafted_by_depth, accepted_by_depth;
  double prefill_seconds = 0;
  double decode_seconds = 0;    // drafting included
  StateTraffic decode_traffic;  // of the target, after the prefill
};

// Calls on_token for each new token as it is decided. The draw at a position depends on (seed,
// position) alone. Throws Error if the prompt is no text (check_text) or fills the context, or if
// logits are not finite; the sequence is closed then, too. drafter may be null.
GenerateStats generate(Runner& runner, ops::Sampler& sampler, Drafter* drafter,
                       std::span<const int32_t> prompt, const GenerateParams& params,
                       const std::function<void(int32_t)>& on_token);

}  // namespace replayssm
