// The noise of a draw, on the host and on CUDA: every step is exactly rounded, so that equal logits
// give equal scores, to the bit, wherever they are drawn.
//
//   score[i] = (logit[i] - most) / temperature + gumbel(noise of (seed, position, i))
//
// The token of the largest score is distributed as softmax(logits / temperature), and among any
// tokens as that softmax over them. As a token's noise does not depend on its neighbours, two
// models that nearly agree draw the same token nearly as often as can be.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define REPLAYSSM_EVERYWHERE __host__ __device__
#else
#define REPLAYSSM_EVERYWHERE
#endif

namespace replayssm::ops {

// No score lies lower than the largest logit's may: gumbel() is in (kLeastGumbel, kMaxGumbel).
constexpr float kLeastGumbel = -3.2f, kMaxGumbel = 22.9f;

struct NoiseBlock {
  uint32_t word[4];  // of tokens 4 block, 4 block + 1, ...
};

// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011) with key `seed` and counter (position,
// block).
REPLAYSSM_EVERYWHERE inline NoiseBlock noise_block(uint64_t seed, int64_t position,
                                                   uint32_t block) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c0 = static_cast<uint32_t>(position), c2 = block, c3 = 0;
  uint32_t c1 = static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ key0;
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ key1;
    c1 = static_cast<uint32_t>(b);
    c3 = static_cast<uint32_t>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// ln x of a normal x > 0, within 2e-16 of |ln x| where that is not near 0: 2^e m with m in
// [sqrt(1/2), sqrt(2)), and ln m = 2 atanh((m - 1) / (m + 1)) by its series. No product may join a
// sum but by fma().
REPLAYSSM_EVERYWHERE inline double exact_log(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcdu;
  const uint64_t shifted = bits - kRootHalf;
  const auto e = static_cast<int32_t>(static_cast<int64_t>(shifted) >> 52);
  bits -= static_cast<uint64_t>(int64_t{e}) << 52;
  double m;
  memcpy(&m, &bits, sizeof m);
  const double f = m - 1.0, s = f / (m + 1.0), z = s * s;
  double p = 0.0;
  for (int n = 23; n >= 3; n -= 2) p = fma(p, z, 1.0 / n);
  const double twice = s + s, tail = z * twice;
  return fma(static_cast<double>(e), 0.69314718055994530942, fma(tail, p, twice));
}

// -ln(-ln u), u = (bits + 1/2) / 2^32.
REPLAYSSM_EVERYWHERE inline double gumbel(uint32_t bits) {
  const double u = (static_cast<double>(bits) + 0.5) * 0x1p-32;
  return -exact_log(-exact_log(u));
}

REPLAYSSM_EVERYWHERE inline double gumbel_score(float logit, float most, float temperature,
                                                uint32_t bits) {
  const double x = static_cast<double>(logit) - static_cast<double>(most);
  return x / static_cast<double>(temperature) + gumbel(bits);
}

// A cheap test before a score: false only if a token of weight e^{(logit - most) / temperature},
// known to 1e-4, cannot have a score above `best`; limit = limit_of(best).
REPLAYSSM_EVERYWHERE inline float limit_of(double best) {
  return expf(static_cast<float>(-best)) * (0x1p32f * 1.001f);
}
REPLAYSSM_EVERYWHERE inline bool may_win(uint32_t bits, float weight, float limit) {
  // P(gumbel > y) = 1 - e^{-e^{-y}} <= e^{-y}.
  return static_cast<float>(~bits) <= weight * limit;
}

// The best of some scores; of equal ones the lower token.
struct BestScore {
  double score = -1e300;
  int32_t token = -1;

  REPLAYSSM_EVERYWHERE bool take(double other, int32_t of) {
    if (other < score || (other == score && of > token)) return false;
    score = other;
    token = of;
    return true;
  }
};

}  // namespace replayssm::ops
