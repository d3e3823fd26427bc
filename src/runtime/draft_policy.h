// How many drafts pay, from what was measured. Changes speed, never text.
#pragma once

#include <algorithm>
#include <cstdint>

namespace replayssm {

// What steps cost, over the last hundred or so: seconds = fixed + per_token * tokens, by least
// squares, and the drafter's seconds a draft.
class StepCost {
 public:
  // A step over `tokens` that decided `new_tokens`; its drafter took draft_seconds for `drafted`.
  void observe(int64_t tokens, double seconds, int64_t new_tokens, int64_t drafted,
               double draft_seconds);

  double per_token() const;
  double per_draft() const { return drafted_ > 0 ? draft_seconds_ / drafted_ : 0; }
  // New tokens a second, drafting included; 0 before the first step.
  double rate() const { return seconds_ > 0 ? new_tokens_ / seconds_ : 0; }

 private:
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
  double new_tokens_ = 0, seconds_ = 0, drafted_ = 0, draft_seconds_ = 0;
};

// One request's K. The next draft pays if the chance that it stands, a token, costs less time than
// a token costs on average now. Where none pays, one is tried now and then, ever more rarely.
class DraftPolicy {
 public:
  DraftPolicy(int32_t most, bool adaptive) : most_(most), adaptive_(adaptive) {}

  // K of the next step.
  int32_t next(const StepCost& cost);
  void observe(int64_t drafted, int64_t accepted);
  double acceptance() const { return accepted_ / tried_; }

 private:
  int32_t most_;
  bool adaptive_;
  double accepted_ = 1, tried_ = 1.5;  // hopeful at first
  int64_t wait_ = 16;                  // steps without drafts until the next try
  int64_t idle_ = 0;
  int64_t steps_ = 0;
};

}  // namespace replayssm
