#include "ops/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/parallel.h"

namespace replayssm::ops {
namespace {

constexpr double kLeast = -std::numeric_limits<double>::infinity();

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// The n best of values[0, count) into `best`, falling, the lower index first on a tie.
void take_best(const double* values, int32_t count, int32_t n, int32_t* best) {
  int32_t taken = 0;
  for (int32_t i = 0; i < count; ++i) {
    if (taken == n && !(values[i] > values[best[n - 1]])) continue;
    int32_t at = taken < n ? taken++ : n - 1;
    for (; at > 0 && values[i] > values[best[at - 1]]; --at) best[at] = best[at - 1];
    best[at] = i;
  }
}

// What the choice goes by: of one row, NaN as the least.
void choice_values(const Router& router, const float* logits, double* values) {
  for (int32_t e = 0; e < router.n_experts; ++e) {
    double value = logits[e];  // softmax keeps the order of the logits
    if (router.score == RouterScore::kSigmoid) {
      value = sigmoid(value) + (router.bias == nullptr ? 0.0 : router.bias[e]);
    }
    values[e] = std::isnan(value) ? kLeast : value;
  }
}

// Experts outside of the best groups fall out of the choice.
void keep_best_groups(const Router& router, double* values, double* sums, int32_t* best) {
  const int32_t length = router.n_experts / router.n_groups;
  for (int32_t g = 0; g < router.n_groups; ++g) {
    int32_t two[2];
    take_best(values + g * length, length, 2, two);
    sums[g] = values[g * length + two[0]] + values[g * length + two[1]];
  }
  take_best(sums, router.n_groups, router.top_groups, best);
  for (int32_t g = 0; g < router.n_groups; ++g) {
    if (std::find(best, best + router.top_groups, g) != best + router.top_groups) continue;
    std::fill_n(values + g * length, length, kLeast);
  }
}

void choice_weights(const Router& router, const float* logits, const int32_t* experts,
                    float* weights) {
  const auto each = [&](const auto& score) {
    double sum = 0.0;
    for (int32_t i = 0; i < router.top_k; ++i) sum += score(logits[experts[i]]);
    const double factor = router.renormalise ? router.scale / (sum + 1e-20) : router.scale;
    for (int32_t i = 0; i < router.top_k; ++i) {
      weights[i] = static_cast<float>(score(logits[experts[i]]) * factor);
    }
  };
  if (router.score == RouterScore::kSigmoid) {
    each([](double logit) { return sigmoid(logit); });
    return;
  }
  // Against the largest logit, which is the first chosen; a common factor leaves renormalised
  // weights as they are.
  const double top = logits[experts[0]];
  double all = 1.0;
  if (!router.renormalise) {
    all = 0.0;
    for (int32_t e = 0; e < router.n_experts; ++e) all += std::exp(logits[e] - top);
  }
  each([&](double logit) { return std::exp(logit - top) / all; });
}

void check(const Router& router, const ConstMatrix& logits) {
  REPLAYSSM_CHECK(logits.dtype == DType::kF32 && logits.cols == router.n_experts,
                  dtype_name(logits.dtype), ", ", logits.cols, " logits of ", router.n_experts);
  REPLAYSSM_CHECK(router.n_experts >= 1 && router.n_experts <= kMaxExperts && router.top_k >= 1 &&
                      router.n_groups >= 1 && router.n_experts % router.n_groups == 0,
                  router.top_k, " of ", router.n_experts, " experts, ", router.n_groups, " groups");
  const int32_t length = router.n_experts / router.n_groups;
  REPLAYSSM_CHECK(router.top_groups >= 1 && router.top_groups <= router.n_groups &&
                      (router.n_groups == 1 || length >= 2) &&
                      router.top_k <= router.top_groups * length,
                  router.top_k, " experts of ", router.top_groups, " groups of ", length);
  REPLAYSSM_CHECK(router.bias == nullptr || router.score == RouterScore::kSigmoid,
                  "a softmax bias");
}

}  // namespace

void route(const Context& context, const Router& router, ConstMatrix logits, int32_t* experts,
           float* weights) {
  check(router, logits);
  static_assert(kMaxExperts * (2 * sizeof(double) + sizeof(int32_t)) <= Context::kScratchBytes);
  const int64_t work = 8 * int64_t{router.n_experts};
  parallel_chunks(context, logits.rows, work, [&](int64_t first, int64_t last, int worker) {
    auto* values = static_cast<double*>(context.scratch(worker));
    double* sums = values + kMaxExperts;
    auto* groups = reinterpret_cast<int32_t*>(sums + kMaxExperts);
    for (int64_t t = first; t < last; ++t) {
      const auto* row = static_cast<const float*>(logits.at(t));
      int32_t* chosen = experts + t * router.top_k;
      choice_values(router, row, values);
      if (router.n_groups > 1) keep_best_groups(router, values, sums, groups);
      take_best(values, router.n_experts, router.top_k, chosen);
      choice_weights(router, row, chosen, weights + t * router.top_k);
    }
  });
}

void sort_by_expert(const int32_t* experts, int64_t n_tokens, int32_t top_k, int32_t n_experts,
                    int32_t* first, int32_t* row) {
  const int64_t n = n_tokens * top_k;
  std::fill_n(first, n_experts + 1, 0);
  for (int64_t i = 0; i < n; ++i) ++first[experts[i]];
  int32_t begin = 0;
  for (int32_t e = 0; e <= n_experts; ++e) {
    const int32_t count = first[e];
    first[e] = begin;
    begin += count;
  }
  // Counted up to the next expert's first row, then put back.
  for (int64_t i = 0; i < n; ++i) row[i] = first[experts[i]]++;
  for (int32_t e = n_experts; e > 0; --e) first[e] = first[e - 1];
  first[0] = 0;
}

void spread_rows(const Context& context, ConstMatrix x, const int32_t* row, int32_t top_k,
                 Matrix y) {
  REPLAYSSM_CHECK(x.dtype == y.dtype && x.cols == y.cols && y.rows == x.rows * top_k, "x ", x.rows,
                  " x ", x.cols, ", y ", y.rows, " x ", y.cols);
  const auto bytes = static_cast<size_t>(x.cols * dtype_bytes(x.dtype));
  parallel_chunks(context, y.rows, x.cols, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) std::memcpy(y.at(row[i]), x.at(i / top_k), bytes);
  });
}

void sum_rows(const Context& context, ConstMatrix x, const int32_t* row, const float* weights,
              int32_t top_k, Matrix y) {
  REPLAYSSM_CHECK(x.dtype == DType::kF32 && y.dtype == DType::kF32 && x.cols == y.cols &&
                      x.rows == y.rows * top_k,
                  "x ", x.rows, " x ", x.cols, ", y ", y.rows, " x ", y.cols);
  const VectorKernels& kernels = vector_kernels(context.isa());
  parallel_chunks(context, y.rows, top_k * y.cols, [&](int64_t first, int64_t last, int) {
    for (int64_t t = first; t < last; ++t) {
      auto* sum = static_cast<float*>(y.at(t));
      std::fill_n(sum, y.cols, 0.0f);
      for (int64_t i = t * top_k; i < (t + 1) * top_k; ++i) {
        kernels.add(sum, span_at(x, row[i], 0), weights[i], y.cols);
      }
    }
  });
}

void add_gated(const Context& context, ConstMatrix gate, ConstMatrix x, Matrix y) {
  REPLAYSSM_CHECK(gate.dtype == DType::kF32 && x.dtype == DType::kF32 && y.dtype == DType::kF32 &&
                      gate.cols == 1 && gate.rows == y.rows && x.rows == y.rows && x.cols == y.cols,
                  "gate ", gate.rows, " x ", gate.cols, ", x ", x.rows, " x ", x.cols, ", y ",
                  y.rows, " x ", y.cols);
  const VectorKernels& kernels = vector_kernels(context.isa());
  parallel_chunks(context, y.rows, y.cols, [&](int64_t first, int64_t last, int) {
    for (int64_t t = first; t < last; ++t) {
      const double factor = sigmoid(*static_cast<const float*>(gate.at(t)));
      kernels.add(static_cast<float*>(y.at(t)), span_at(x, t, 0), static_cast<float>(factor),
                  y.cols);
    }
  });
}

}  // namespace replayssm::ops
