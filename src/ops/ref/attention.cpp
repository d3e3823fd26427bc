#include <algorithm>
#include <cmath>

#include "ops/ref/ref.h"

namespace replayssm::ops::ref {

std::vector<double> attention(ConstHeads q, ConstHeads k, ConstHeads v, int64_t start,
                              float scale) {
  const int64_t group = q.heads / k.heads;
  std::vector<double> out;
  for (int64_t t = 0; t < q.tokens; ++t) {
    for (int64_t h = 0; h < q.heads; ++h) {
      std::vector<double> weight;
      for (int64_t j = 0; j <= start + t; ++j) {
        double score = 0.0;
        for (int64_t d = 0; d < q.dim; ++d) score += get(q, t, h, d) * get(k, j, h / group, d);
        weight.push_back(score * scale);
      }
      const double max = *std::max_element(weight.begin(), weight.end());
      double sum = 0.0;
      for (double& w : weight) {
        w = std::exp(w - max);
        sum += w;
      }
      for (int64_t d = 0; d < q.dim; ++d) {
        double value = 0.0;
        for (size_t j = 0; j < weight.size(); ++j) {
          value += weight[j] * get(v, static_cast<int64_t>(j), h / group, d);
        }
        out.push_back(value / sum);
      }
    }
  }
  return out;
}

}  // namespace replayssm::ops::ref
