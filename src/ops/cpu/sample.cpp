#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "ops/cpu/dispatch.h"

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

void multiply_wide(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
  const uint64_t product = static_cast<uint64_t>(a) * b;
  high = static_cast<uint32_t>(product >> 32);
  low = static_cast<uint32_t>(product);
}

}  // namespace

// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011).
double uniform_at(uint64_t seed, int64_t position) {
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const uint64_t index = static_cast<uint64_t>(position);
  uint32_t c[4] = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0};
  for (int round = 0; round < 10; ++round) {
    uint32_t high0, low0, high1, low1;
    multiply_wide(0xD2511F53u, c[0], high0, low0);
    multiply_wide(0xCD9E8D57u, c[2], high1, low1);
    const uint32_t next[4] = {high1 ^ c[1] ^ key[0], low1, high0 ^ c[3] ^ key[1], low0};
    std::copy(next, next + 4, c);
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  const uint64_t bits = (static_cast<uint64_t>(c[1]) << 32) | c[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

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
  const double u = uniform_at(params.seed, position);
  const bool all = (params.top_k <= 0 || params.top_k >= n_vocab_) && params.top_p >= 1.0f &&
                   params.min_p <= 0.0f;
  return all ? draw_all(u) : draw_filtered(logits, params, u);
}

SampleResult Sampler::draw_all(double u) const {
  const float* weights = weights_.as<float>();
  const double target = u * total_of(weights, n_vocab_);
  // The block that holds the target; rounding may leave it past the end, then the last with mass.
  double before = 0.0;
  double base = 0.0;
  int64_t block = 0;
  for (int64_t first = 0; first < n_vocab_; first += kBlock) {
    const double mass = block_sum(weights + first, std::min(kBlock, n_vocab_ - first));
    if (mass <= 0.0) continue;
    block = first;
    base = before;
    before += mass;
    if (before > target) break;
  }
  int64_t last = block;
  const int64_t end = std::min(block + kBlock, n_vocab_);
  for (int64_t i = block; i < end; ++i) {
    if (weights[i] <= 0.0f) continue;
    last = i;
    base += static_cast<double>(weights[i]);
    if (base > target) break;
  }
  return {SampleStatus::kOk, static_cast<int32_t>(last)};
}

SampleResult Sampler::draw_filtered(const float* logits, const SamplerParams& params, double u) {
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
    std::sort(kept, kept + n,
              [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  }

  // The likeliest token has weight 1.
  double total = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    if (kept[i].weight < params.min_p) kept[i].weight = 0.0f;
    total += static_cast<double>(kept[i].weight);
  }
  const double target = u * total;
  double cumulative = 0.0;
  int32_t last = kept[0].token;
  for (int64_t i = 0; i < n; ++i) {
    if (kept[i].weight <= 0.0f) continue;
    last = kept[i].token;
    cumulative += static_cast<double>(kept[i].weight);
    if (cumulative > target) break;
  }
  return {SampleStatus::kOk, last};
}

}  // namespace replayssm::ops
