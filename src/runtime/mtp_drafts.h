// Drafts of the model's own multi-token-prediction head (MtpSpec), for sequences of its backend.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/sample.h"
#include "runtime/backend.h"

namespace replayssm {

// A sequence that is drafted for. Its last known token lies at its n, behind the last pass over it.
struct MtpJob {
  DraftRow row;  // that token
  int32_t k = 0;
  ops::SamplerParams sampling;
  std::vector<int32_t> drafts = {};
};

// Up to k drafts for each job, by passes that the jobs share. A draft is drawn from the head's
// logits as the model's own token will be from the model's. The head's entries at [n, n + k) are
// written: pages that hold them are the sequence's own. The model's next pass writes over them.
void draft_by_mtp(Backend& backend, ops::Sampler& sampler, int64_t vocab, std::span<MtpJob> jobs);

}  // namespace replayssm
