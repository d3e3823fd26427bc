// Mixtures of experts: which experts see a token, how its row gets to them and how their results
// are summed. The experts themselves are Linear over the rows that chose them.
#pragma once

#include <cstdint>

#include "ops/context.h"
#include "ops/matrix.h"

namespace replayssm::ops {

enum class RouterScore : int32_t {
  kSoftmax,  // over all experts
  kSigmoid,  // of each expert's own logit
};

// The top_k experts of the largest score + bias, the lower index first on a tie; their weight is
// the score, without bias, over the sum of the chosen scores if `renormalise`, times `scale`.
// With groups the experts are n_groups runs of equal length, and only those of the top_groups runs
// with the largest sum of their two best can be chosen. Scores are computed in double.
struct Router {
  RouterScore score = RouterScore::kSoftmax;
  int32_t n_experts = 0;
  int32_t top_k = 1;
  int32_t n_groups = 1;  // divides n_experts into runs of two at least
  int32_t top_groups = 1;
  bool renormalise = true;
  float scale = 1.0f;
  const float* bias = nullptr;  // [n_experts], sigmoid only; null: none
};

constexpr int32_t kMaxExperts = 4096;

// logits [tokens, n_experts] fp32 -> experts and weights [tokens, top_k], best first. A NaN logit
// is never preferred; chosen all the same, its weight is NaN.
void route(const Context& context, const Router& router, ConstMatrix logits, int32_t* experts,
           float* weights);

// Sorts the choices by expert, then by token: choice i of token t gets row[t * top_k + i], and
// expert e has the rows [first[e], first[e + 1]). first [n_experts + 1].
void sort_by_expert(const int32_t* experts, int64_t n_tokens, int32_t top_k, int32_t n_experts,
                    int32_t* first, int32_t* row);

// y[row[t * top_k + i]] = x[t]     same dtype
void spread_rows(const Context& context, ConstMatrix x, const int32_t* row, int32_t top_k,
                 Matrix y);

// y[t] = sum_i weights[t * top_k + i] * x[row[t * top_k + i]], i = 0, 1, ...   an fma a term; fp32
void sum_rows(const Context& context, ConstMatrix x, const int32_t* row, const float* weights,
              int32_t top_k, Matrix y);

// y[t] = y[t] + sigmoid(gate[t]) * x[t]     gate [tokens, 1], all fp32
void add_gated(const Context& context, ConstMatrix gate, ConstMatrix x, Matrix y);

}  // namespace replayssm::ops
