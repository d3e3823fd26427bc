// What decides the next token of one choice of a request: a pure function of (logits, the text so
// far, the request, the position), whether tokens come one or several a step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/engine.h"

namespace replayssm {

// ln softmax of the raw logits: of the token, and of the k likeliest (the lower id first on a tie).
TokenLogprob logprob_of(const ops::Context& context, std::span<const float> logits, int32_t token,
                        int32_t k);

// Work memory that all choices share.
struct DrawMemory {
  DrawMemory(const ops::Context& context_in, int64_t vocab)
      : context(context_in),
        sampler(context, vocab),
        logits(static_cast<size_t>(vocab)),
        allowed(static_cast<size_t>(vocab)) {}
  int64_t bytes() const {
    return static_cast<int64_t>(logits.size() * (sizeof(float) + 1 + 2 * sizeof(float) + 4));
  }

  const ops::Context& context;
  ops::Sampler sampler;
  std::vector<float> logits;
  std::vector<uint8_t> allowed;
};

class Choice {
 public:
  // The request must outlive it.
  Choice(const GenerationRequest& request, int32_t index);

  enum class Status : int32_t { kToken, kStop, kConstraintDone, kError };
  struct Drawn {
    Status status = Status::kToken;
    int32_t token = -1;
    std::optional<TokenLogprob> logprob;
    std::string error;
  };
  // Draws the token at `position` from its logits and takes it into the text. In this order:
  // repetition, presence and frequency penalties, bias, constraint, sampling.
  Drawn draw(DrawMemory& memory, std::span<const float> logits, int64_t position);
  // Sampling alone decides, and no logprob is asked for: take() may stand for draw().
  bool samples_only() const;
  // As draw(), with what the sampler drew.
  Drawn take(const ops::SampleResult& drawn, int64_t position) const;

  // The drafts up to the first that the constraint refuses: it could not stand.
  std::vector<int32_t> possible(std::vector<int32_t> drafts) const;

  const ops::SamplerParams& sampling() const { return sampling_; }

 private:
  void adjust(std::span<float> logits) const;

  const GenerationRequest& request_;
  ops::SamplerParams sampling_;
  bool adjusts_;
  std::unordered_map<int32_t, int64_t> seen_;  // id -> its count in the answer; prompt ids: 0
  std::unique_ptr<TokenConstraint> constraint_;
};

}  // namespace replayssm
