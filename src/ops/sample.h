// One token from a row of logits. The draw is a pure function of (logits, params, position):
//
//   temperature  logits / temperature; 0 takes the largest logit, the lowest index on a tie
//   top_k        keeps the k largest (on a tie the lower index); 0 keeps all
//   top_p        of what is left, renormalised: keeps a token if the tokens before it, in falling
//                order, hold less than top_p; 1 keeps all; the first is always kept
//   min_p        drops tokens less likely than min_p times the likeliest; 0 drops none
//
// in that order (the usual one). Of the tokens kept, the one of the largest score of ops/gumbel.h
// is drawn, the lower index on a tie. Equal logits give equal draws on the CPU and on CUDA, but for
// a token whose weight lies within rounding of top_p's or min_p's edge.
#pragma once

#include <cstdint>

#include "core/memory.h"
#include "ops/context.h"

namespace replayssm::ops {

struct SamplerParams {
  float temperature = 0.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;
};

enum class SampleStatus : int32_t {
  kOk,
  kNan,    // a logit is NaN or +inf
  kEmpty,  // every logit is -inf
};

struct SampleResult {
  SampleStatus status = SampleStatus::kOk;
  int32_t token = -1;
};

// ln softmax(logits)[token], by a double sum; NaN if a logit is NaN.
double log_prob(const Context& context, const float* logits, int64_t n_vocab, int32_t token);

// Holds the work memory; one thread at a time.
class Sampler {
 public:
  Sampler(const Context& context, int64_t n_vocab);
  SampleResult sample(const float* logits, const SamplerParams& params, int64_t position);

 private:
  struct Candidate {
    float weight;
    int32_t token;
  };
  SampleResult draw_all(const float* logits, float most, const SamplerParams& params,
                        int64_t position) const;
  SampleResult draw_filtered(const float* logits, float most, const SamplerParams& params,
                             int64_t position);

  Isa isa_;
  int64_t n_vocab_;
  Buffer weights_;     // fp32 [n_vocab]: exp((logit - max) / temperature)
  Buffer candidates_;  // Candidate [n_vocab]
};

}  // namespace replayssm::ops
