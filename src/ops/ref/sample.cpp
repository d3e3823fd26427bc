#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/ref/ref.h"

namespace replayssm::ops::ref {

std::vector<double> sample_distribution(const float* logits, int64_t n_vocab,
                                        const SamplerParams& params) {
  std::vector<int64_t> order(static_cast<size_t>(n_vocab));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  std::vector<double> distribution(static_cast<size_t>(n_vocab), 0.0);
  if (params.temperature <= 0.0f) {
    distribution[order[0]] = 1.0;
    return distribution;
  }
  const double top = logits[order[0]];
  std::vector<double> weight;  // by falling logit
  for (const int64_t token : order) {
    weight.push_back(std::exp((logits[token] - top) / static_cast<double>(params.temperature)));
  }
  if (params.top_k > 0) weight.resize(std::min<size_t>(weight.size(), params.top_k));
  const double mass = std::accumulate(weight.begin(), weight.end(), 0.0);
  double before = 0.0;
  size_t count = 0;
  while (count < weight.size() &&
         (count == 0 || params.top_p >= 1.0f || before < params.top_p * mass)) {
    before += weight[count++];
  }
  weight.resize(count);
  double kept = 0.0;
  for (double& w : weight) {
    if (w < params.min_p) w = 0.0;
    kept += w;
  }
  for (size_t i = 0; i < weight.size(); ++i) distribution[order[i]] = weight[i] / kept;
  return distribution;
}

}  // namespace replayssm::ops::ref
