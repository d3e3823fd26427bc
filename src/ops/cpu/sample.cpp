#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "ops/cpu/dispatch.h"
#include "ops/gumbel.h"

namespace replayssm::ops {
namespace {

constexpr int64_t kBlock = 1024;

// Sums in double over a block, eight chains and a fixed tree.
double block_sum(const float* weights, int64_t n) {
  double chain[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) chain[j] += static_cast<double>(weights[i + j]);
  }
  for (int64_t j = 0; i + j < n; ++j) chain[j] += static_cast<double>(weights[i + j]);
  return ((chain[0] + chain[4]) + (chain[2] + chain[6])) +
         ((chain[1] + chain[5]) + (chain[3] + chain[7]));
}

double total_of(const float* weights, int64_t n) {
  double total = 0.0;
  for (int64_t first = 0; first < n; first += kBlock) {
    total += block_sum(weights + first, std::min(kBlock, n - first));
  }
  return total;
}

}  // namespace

double log_prob(const Context& context, const float* logits, int64_t n_vocab, int32_t token) {
  REPLAYSSM_CHECK(token >= 0 && token < n_vocab, token, " of ", n_vocab);
  const VectorKernels& kernels = vector_kernels(context.isa());
  const float max = kernels.max(logits, n_vocab);
  if (std::isnan(max)) return std::numeric_limits<double>::quiet_NaN();
  float weights[kBlock];
  double total = 0.0;
  for (int64_t first = 0; first < n_vocab; first += kBlock) {
    const int64_t n = std::min(kBlock, n_vocab - first);
    kernels.exp_weights(logits + first, max, 1.0f, weights, n);
    total += block_sum(weights, n);
  }
  return static_cast<double>(logits[token]) - static_cast<double>(max) - std::log(total);
}

Sampler::Sampler(const Context& context, int64_t n_vocab)
    : isa_(context.isa()),
      n_vocab_(n_vocab),
      weights_(static_cast<size_t>(n_vocab) * sizeof(float)),
      candidates_(static_cast<size_t>(n_vocab) * sizeof(Candidate)) {}

SampleResult Sampler::sample(const float* logits, const SamplerParams& params, int64_t position) {
  const VectorKernels& kernels = vector_kernels(isa_);
  const float max = kernels.max(logits, n_vocab_);
  if (std::isnan(max) || max == std::numeric_limits<float>::infinity()) {
    return {SampleStatus::kNan, -1};
  }
  if (max == -std::numeric_limits<float>::infinity()) return {SampleStatus::kEmpty, -1};
  if (params.temperature <= 0.0f || params.top_k == 1) {
    const float* first = std::find(logits, logits + n_vocab_, max);
    return {SampleStatus::kOk, static_cast<int32_t>(first - logits)};
  }
  kernels.exp_weights(logits, max, params.temperature, weights_.as<float>(), n_vocab_);
  const bool all = (params.top_k <= 0 || params.top_k >= n_vocab_) && params.top_p >= 1.0f &&
                   params.min_p <= 0.0f;
  return all ? draw_all(logits, max, params, position)
             : draw_filtered(logits, max, params, position);
}

SampleResult Sampler::draw_all(const float* logits, float most, const SamplerParams& params,
                               int64_t position) const {
  const VectorKernels& kernels = vector_kernels(isa_);
  const float* weights = weights_.as<float>();
  BestScore best;
  float limit = limit_of(kLeastGumbel);
  uint32_t noise[kNoiseTokens];
  for (int64_t first = 0; first < n_vocab_; first += kNoiseTokens) {
    const int64_t n = std::min(kNoiseTokens, n_vocab_ - first);
    // Nothing may win but by more noise than there is.
    if (kernels.max(weights + first, n) * limit < 0.5f) continue;
    kernels.noise(params.seed, position, static_cast<uint32_t>(first / 4), noise);
    for (int64_t i = 0; i < n; ++i) {
      if (!may_win(noise[i], weights[first + i], limit)) continue;
      const auto token = static_cast<int32_t>(first + i);
      if (best.take(gumbel_score(logits[token], most, params.temperature, noise[i]), token)) {
        limit = limit_of(best.score);
      }
    }
  }
  return {SampleStatus::kOk, best.token};
}

SampleResult Sampler::draw_filtered(const float* logits, float most, const SamplerParams& params,
                                    int64_t position) {
  const float* weights = weights_.as<float>();
  Candidate* const kept = candidates_.as<Candidate>();
  const int64_t top_k = params.top_k <= 0 ? n_vocab_ : std::min<int64_t>(params.top_k, n_vocab_);
  const bool by_order = top_k < n_vocab_ || params.top_p < 1.0f;
  const double top_p = static_cast<double>(params.top_p);
  const double all_mass = top_k < n_vocab_ ? 0.0 : total_of(weights, n_vocab_);

  // Collects candidates above falling floors of weight, so that a peaked distribution sorts few of
  // them. A floor is low enough if everything that top_k and top_p could keep lies above it.
  const float floors[] = {0.2f, 0.02f, 1e-3f, 1e-7f, -1.0f};
  int64_t n = 0;
  for (const float floor : floors) {
    n = 0;
    double mass = 0.0;
    for (int64_t i = 0; i < n_vocab_; ++i) {
      if (weights[i] < floor) continue;
      kept[n++] = {weights[i], static_cast<int32_t>(i)};
      mass += static_cast<double>(weights[i]);
    }
    if (!by_order) {
      if (floor <= params.min_p) break;
    } else if (top_k < n_vocab_ ? n >= top_k : mass > top_p * all_mass * (1.0 + 1e-9)) {
      break;
    }
  }

  if (by_order) {
    const auto before = [&](const Candidate& a, const Candidate& b) {
      const float x = logits[a.token];
      const float y = logits[b.token];
      return x != y ? x > y : a.token < b.token;
    };
    if (n > top_k) {
      std::nth_element(kept, kept + top_k, kept + n, before);
      n = top_k;
    }
    if (params.top_p < 1.0f) {
      std::sort(kept, kept + n, before);
      double mass = all_mass;
      if (top_k < n_vocab_) {
        mass = 0.0;
        for (int64_t i = 0; i < n; ++i) mass += static_cast<double>(kept[i].weight);
      }
      int64_t count = 1;
      double ahead = static_cast<double>(kept[0].weight);
      while (count < n && ahead < top_p * mass) {
        ahead += static_cast<double>(kept[count++].weight);
      }
      n = count;
    }
  }

  // The likeliest token has weight 1.
  BestScore best;
  for (int64_t i = 0; i < n; ++i) {
    if (kept[i].weight < params.min_p) continue;
    const auto token = static_cast<uint32_t>(kept[i].token);
    const uint32_t bits = noise_block(params.seed, position, token / 4).word[token % 4];
    best.take(gumbel_score(logits[token], most, params.temperature, bits), kept[i].token);
  }
  return {SampleStatus::kOk, best.token};
}

}  // namespace replayssm::ops
