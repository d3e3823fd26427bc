#include "runtime/choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace replayssm {

TokenLogprob logprob_of(const ops::Context& context, std::span<const float> logits, int32_t token,
                        int32_t k) {
  const int64_t vocab = std::ssize(logits);
  const int32_t likeliest = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  const double max = static_cast<double>(logits[static_cast<size_t>(likeliest)]);
  // log_prob subtracts the largest logit, then the log of the sum: here -log of the sum is left.
  const double log_sum = -ops::log_prob(context, logits.data(), vocab, likeliest);
  const auto at = [&](int32_t id) {
    return static_cast<double>(logits[static_cast<size_t>(id)]) - max - log_sum;
  };
  TokenLogprob out;
  out.token = token;
  out.logprob = at(token);
  if (k <= 0) return out;
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min<int64_t>(k, vocab);
  std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (auto it = order.begin(); it != end; ++it) out.top.emplace_back(*it, at(*it));
  return out;
}

Choice::Choice(const GenerationRequest& request, int32_t index)
    : request_(request), sampling_(request.sampling) {
  sampling_.seed += static_cast<uint64_t>(index);
  const Penalties& p = request.penalties;
  adjusts_ = p.repetition != 1.0f || p.presence != 0.0f || p.frequency != 0.0f || !p.bias.empty();
  if (p.repetition != 1.0f) {
    for (const int32_t id : request.prompt) seen_.emplace(id, 0);
  }
  if (request.constraint) constraint_ = request.constraint->clone();
}

void Choice::adjust(std::span<float> logits) const {
  const Penalties& p = request_.penalties;
  for (const auto& [id, count] : seen_) {
    float& logit = logits[static_cast<size_t>(id)];
    if (p.repetition != 1.0f) logit = logit > 0 ? logit / p.repetition : logit * p.repetition;
    if (count > 0) logit -= p.presence + p.frequency * static_cast<float>(count);
  }
  for (const auto& [id, bias] : p.bias) logits[static_cast<size_t>(id)] += bias;
}

Choice::Drawn Choice::draw(DrawMemory& memory, std::span<const float> logits, int64_t position) {
  const float* from = logits.data();
  // NaN shows in the raw logits too; a mask must not hide it.
  const bool masks = constraint_ != nullptr;
  if (adjusts_ || masks) {
    std::ranges::copy(logits, memory.logits.begin());
    from = memory.logits.data();
  }
  if (adjusts_) adjust(memory.logits);
  if (masks) {
    for (const float logit : logits) {
      if (std::isnan(logit)) return {Status::kError, -1, {}, concat("NaN logits at ", position)};
    }
    try {
      constraint_->allowed(memory.allowed);
    } catch (const std::exception& e) {
      return {Status::kError, -1, {}, e.what()};
    }
    if (std::ranges::find_if(memory.allowed, [](uint8_t a) { return a != 0; }) ==
        memory.allowed.end()) {
      return {Status::kConstraintDone, -1, {}, {}};
    }
    for (size_t i = 0; i < memory.logits.size(); ++i) {
      if (memory.allowed[i] == 0) memory.logits[i] = -std::numeric_limits<float>::infinity();
    }
  }
  Drawn out = take(memory.sampler.sample(from, sampling_, position), position);
  if (out.status == Status::kError) return out;
  if (request_.logprobs >= 0) {
    out.logprob = logprob_of(memory.context, logits, out.token, request_.logprobs);
  }
  if (out.status == Status::kStop) return out;
  try {
    if (masks && !constraint_->accept(out.token)) {
      return {Status::kError,
              -1,
              {},
              concat("the grammar refuses a token that it allowed at ", position)};
    }
  } catch (const std::exception& e) {
    return {Status::kError, -1, {}, e.what()};
  }
  if (adjusts_) ++seen_[out.token];
  return out;
}

bool Choice::samples_only() const {
  return !adjusts_ && constraint_ == nullptr && request_.logprobs < 0;
}

Choice::Drawn Choice::take(const ops::SampleResult& drawn, int64_t position) const {
  if (drawn.status == ops::SampleStatus::kNan) {
    return {Status::kError, -1, {}, concat("the model gave NaN logits at ", position)};
  }
  if (drawn.status == ops::SampleStatus::kEmpty) {
    return {Status::kError, -1, {}, concat("every logit is -inf at ", position)};
  }
  Drawn out;
  out.token = drawn.token;
  if (std::ranges::find(request_.stop_ids, drawn.token) != request_.stop_ids.end()) {
    out.status = Status::kStop;
  }
  return out;
}

std::vector<int32_t> Choice::possible(std::vector<int32_t> drafts) const {
  if (constraint_ == nullptr) return drafts;
  size_t n = 0;
  try {
    const auto walk = constraint_->clone();
    while (n < drafts.size() && walk->accept(drafts[n])) ++n;
  } catch (const std::exception&) {  // draw() meets it too, and tells
  }
  drafts.resize(n);
  return drafts;
}

}  // namespace replayssm
