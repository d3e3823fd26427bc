// The windows of one pass, packed. The buffers are used again from pass to pass.
#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "model/forward.h"

namespace replayssm {

class PackedWindows {
 public:
  explicit PackedWindows(const ForwardLimits& limits) {
    rows_.reserve(static_cast<size_t>(limits.max_rows));
    tokens_.reserve(static_cast<size_t>(limits.max_tokens));
    logit_tokens_.reserve(static_cast<size_t>(limits.max_logits));
  }

  void clear() {
    rows_.clear();
    tokens_.clear();
    logit_tokens_.clear();
  }

  // A window over `tokens`, the last n_logits of which give logits; its token and n_tokens are set
  // here. The pages must outlive the pass.
  const Row& add(Row row, Phase phase, const int32_t* pages, std::span<const int32_t> tokens,
                 int64_t n_logits) {
    row.token = std::ssize(tokens_);
    row.n_tokens = static_cast<int32_t>(tokens.size());
    rows_.push_back({row, phase, pages});
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    for (int64_t i = n_logits; i > 0; --i) logit_tokens_.push_back(std::ssize(tokens_) - i);
    return rows_.back().row;
  }

  std::span<const ForwardRow> rows() const { return rows_; }
  ForwardBatch batch() const { return {rows_, tokens_, logit_tokens_}; }

 private:
  std::vector<ForwardRow> rows_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> logit_tokens_;
};

}  // namespace replayssm
