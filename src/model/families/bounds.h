// Upper bounds of every size that a config may name: generous, and small enough that products of
// two stay far from overflow.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/spec.h"

namespace replayssm {

constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHidden = 1 << 17;
constexpr int64_t kMaxVocab = 1 << 23;
constexpr int64_t kMaxPositions = int64_t{1} << 31;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxFf = 1 << 20;
constexpr int64_t kMinConvWidth = 2;
constexpr int64_t kMaxConvWidth = 8;

// A required size in [1, max].
inline int32_t read_size(const ConfigObject& config, const char* field, int64_t max) {
  return static_cast<int32_t>(config.integer(field, 1, max));
}

// How many experts, how many of them a token takes, their width, and whether weights sum to one.
inline void read_experts(const ConfigObject& config, const char* count, MoeSpec& moe) {
  moe.n_experts = read_size(config, count, ops::kMaxExperts);
  moe.top_k = read_size(config, "num_experts_per_tok", ops::kMaxExperts);
  if (moe.top_k > moe.n_experts) {
    config.refuse("num_experts_per_tok", "is ", moe.top_k, ", but ", count, " is ", moe.n_experts);
  }
  moe.ff = read_size(config, "moe_intermediate_size", kMaxFf);
  moe.renormalise = config.boolean_or("norm_topk_prob", true);
}

// eos_token_id: one id, a list, or absent.
inline std::vector<int32_t> read_eos(const ConfigObject& config, int64_t vocab) {
  std::vector<int32_t> out;
  for (const int64_t id : config.integers_or_none("eos_token_id", 0, vocab - 1)) {
    out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

}  // namespace replayssm
