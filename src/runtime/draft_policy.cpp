#include "runtime/draft_policy.h"

namespace replayssm {
namespace {

constexpr double kKeepCost = 0.98;    // of what was measured, a step
constexpr double kKeepDrafts = 0.95;  // of a request's counts, a step
constexpr int64_t kLongestWait = 512;
constexpr int64_t kPlainStep = 32;  // one step of so many goes without drafts

}  // namespace

void StepCost::observe(int64_t tokens, double seconds, int64_t new_tokens, int64_t drafted,
                       double draft_seconds) {
  for (double* sum : {&n_, &x_, &y_, &xx_, &xy_, &new_tokens_, &seconds_}) *sum *= kKeepCost;
  const double x = static_cast<double>(tokens);
  n_ += 1;
  x_ += x;
  y_ += seconds;
  xx_ += x * x;
  xy_ += x * seconds;
  new_tokens_ += static_cast<double>(new_tokens);
  seconds_ += seconds + draft_seconds;
  if (drafted == 0) return;
  drafted_ = kKeepCost * drafted_ + static_cast<double>(drafted);
  draft_seconds_ = kKeepCost * draft_seconds_ + draft_seconds;
}

double StepCost::per_token() const {
  const double spread = n_ * xx_ - x_ * x_;
  if (spread <= 1e-9 * n_ * xx_) return 0;
  return std::max(0.0, (n_ * xy_ - x_ * y_) / spread);
}

int32_t DraftPolicy::next(const StepCost& cost) {
  if (!adaptive_) return most_;
  if (++steps_ % kPlainStep == kPlainStep / 4) return 0;
  const double threshold = cost.rate() * (cost.per_token() + cost.per_draft());
  int32_t k = 0;
  for (double chance = acceptance(); k < most_ && chance > threshold; chance *= acceptance()) ++k;
  if (k > 0) {
    idle_ = 0;
    wait_ = 16;
    return k;
  }
  if (++idle_ <= wait_) return 0;
  idle_ = 0;
  wait_ = std::min(2 * wait_, kLongestWait);
  return std::min(most_, 1);
}

void DraftPolicy::observe(int64_t drafted, int64_t accepted) {
  if (drafted == 0) return;
  accepted_ = kKeepDrafts * accepted_ + static_cast<double>(accepted);
  tried_ = kKeepDrafts * tried_ + static_cast<double>(accepted + (accepted < drafted ? 1 : 0));
}

}  // namespace replayssm
