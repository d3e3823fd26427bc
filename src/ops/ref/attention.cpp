#include <algorithm>
#include <cmath>

#include "ops/ref/ref.h"

namespace replayssm::ops::ref {
namespace {

std::vector<double> widen(ConstHeads x) {
  std::vector<double> all;
  for (int64_t t = 0; t < x.tokens; ++t) {
    for (int64_t h = 0; h < x.heads; ++h) {
      for (int64_t d = 0; d < x.dim; ++d) all.push_back(get(x, t, h, d));
    }
  }
  return all;
}

}  // namespace

std::vector<double> attention(ConstHeads q, ConstHeads k, ConstHeads v, int64_t start,
                              float scale) {
  const int64_t group = q.heads / k.heads;
  const std::vector<double> qs = widen(q);
  const std::vector<double> ks = widen(k);
  const std::vector<double> vs = widen(v);
  std::vector<double> out;
  for (int64_t t = 0; t < q.tokens; ++t) {
    for (int64_t h = 0; h < q.heads; ++h) {
      const double* query = qs.data() + (t * q.heads + h) * q.dim;
      std::vector<double> weight;
      for (int64_t j = 0; j <= start + t; ++j) {
        const double* key = ks.data() + (j * k.heads + h / group) * q.dim;
        double score = 0.0;
        for (int64_t d = 0; d < q.dim; ++d) score += query[d] * key[d];
        weight.push_back(score * scale);
      }
      const double max = *std::max_element(weight.begin(), weight.end());
      double sum = 0.0;
      for (double& w : weight) {
        w = std::exp(w - max);
        sum += w;
      }
      std::vector<double> value(static_cast<size_t>(q.dim), 0.0);
      for (size_t j = 0; j < weight.size(); ++j) {
        const double* row = vs.data() + (static_cast<int64_t>(j) * k.heads + h / group) * q.dim;
        for (int64_t d = 0; d < q.dim; ++d) value[static_cast<size_t>(d)] += weight[j] * row[d];
      }
      for (const double x : value) out.push_back(x / sum);
    }
  }
  return out;
}

}  // namespace replayssm::ops::ref
