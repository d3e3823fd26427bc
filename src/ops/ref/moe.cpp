#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/ref/ref.h"

namespace replayssm::ops::ref {
namespace {

// Indices of values, falling; the lower index first on a tie.
std::vector<int32_t> order_of(const std::vector<double>& values) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace

std::vector<Choice> route(const Router& router, const std::vector<float>& logits) {
  std::vector<double> scores;
  double all = 0.0;
  for (const float x : logits) all += std::exp(static_cast<double>(x));
  for (const float x : logits) {
    const double e = std::exp(static_cast<double>(x));
    scores.push_back(router.score == RouterScore::kSoftmax ? e / all : e / (1.0 + e));
  }
  std::vector<double> values = scores;
  for (size_t e = 0; e < values.size(); ++e) {
    if (router.bias != nullptr) values[e] += router.bias[e];
  }
  if (router.n_groups > 1) {
    const size_t length = values.size() / static_cast<size_t>(router.n_groups);
    std::vector<double> groups;
    for (size_t at = 0; at < values.size(); at += length) {
      std::vector<double> group(values.begin() + static_cast<int64_t>(at),
                                values.begin() + static_cast<int64_t>(at + length));
      std::sort(group.rbegin(), group.rend());
      groups.push_back(group[0] + group[1]);
    }
    const auto best = order_of(groups);
    for (size_t i = static_cast<size_t>(router.top_groups); i < best.size(); ++i) {
      const auto first = values.begin() + best[i] * static_cast<int64_t>(length);
      std::fill(first, first + static_cast<int64_t>(length), -INFINITY);
    }
  }
  const auto order = order_of(values);
  std::vector<Choice> out;
  double sum = 0.0;
  for (int32_t i = 0; i < router.top_k; ++i) {
    const int32_t expert = order[static_cast<size_t>(i)];
    out.push_back({expert, scores[static_cast<size_t>(expert)]});
    sum += out.back().weight;
  }
  for (Choice& choice : out) {
    choice.weight *= router.renormalise ? router.scale / sum : router.scale;
  }
  return out;
}

}  // namespace replayssm::ops::ref
