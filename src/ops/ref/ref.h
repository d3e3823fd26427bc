// The ops as their formulas say, in double with plain loops: what the tests compare against.
// Inputs are read as the ops see them (already rounded); results are not rounded.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/matrix.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/sample.h"

namespace replayssm::ops::ref {

double get(ConstMatrix x, int64_t row, int64_t col);
double get(ConstHeads x, int64_t token, int64_t head, int64_t dim);

// Results are row-major, [rows, cols] or [tokens, heads, dim].
std::vector<double> linear(ConstMatrix x, ConstMatrix weight, const float* bias);
std::vector<double> rms_norm(ConstMatrix x, NormWeight weight, float eps);
std::vector<double> head_norm(ConstHeads x, NormWeight weight, float eps);
std::vector<double> gated_norm(const GatedNorm& norm, ConstMatrix y, ConstMatrix z);
std::vector<double> silu_mul(ConstMatrix gate, ConstMatrix up);
std::vector<double> relu2(ConstMatrix x);
std::vector<double> sigmoid_mul(ConstHeads x, ConstHeads gate);
std::vector<double> residual_add(ConstMatrix x, ConstMatrix y, float scale);
std::vector<double> rope(ConstHeads x, const int64_t* positions, int32_t rotary_dims, double theta);

// One sequence: k and v [positions, n_kv_heads, dim] hold positions 0, 1, ...; query token i is at
// position start + i.
std::vector<double> attention(ConstHeads q, ConstHeads k, ConstHeads v, int64_t start, float scale);

// The chosen experts of one row of logits, best first.
struct Choice {
  int32_t expert;
  double weight;
};
std::vector<Choice> route(const Router& router, const std::vector<float>& logits);

// The exact distribution of sample(): the probability of every token.
std::vector<double> sample_distribution(const float* logits, int64_t n_vocab,
                                        const SamplerParams& params);

}  // namespace replayssm::ops::ref
