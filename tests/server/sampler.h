// Draws texts from a grammar: a model whose logits say nothing.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "server/served_model.h"

namespace replayssm::server {

inline constexpr int32_t kSampledVocab = 4096;

inline ServedModel sampled_model() {
  return load_served_model(REPLAYSSM_SOURCE_DIR "/models/demo-gdn", "", 4096, 4096, {});
}

// Half of the texts take any allowed token with the same probability, as logits at a high
// temperature do; the others prefer tokens of one byte, which reach every state of an automaton.
class Sampler {
 public:
  // `closers`: the characters that end what would go on for long.
  Sampler(const ServedModel& model, uint64_t seed, std::string_view closers = "\"}]")
      : tokenizer_(*model.tokenizer), ends_(model.eos_ids), random_(seed) {
    for (int32_t id = 0; id < kSampledVocab; ++id) {
      const auto token = tokenizer_.token_bytes(id);
      closes_.push_back(token.find_first_of(closers) != std::string_view::npos);
      is_byte_.push_back(token.size() == 1);
    }
  }

  // Nothing if the text has not ended after `most` tokens.
  std::optional<std::string> draw(const TokenConstraint& grammar, int most = 400) {
    const auto constraint = grammar.clone();
    const bool bytes = chance(0.5);
    const double end = chance(0.5) ? 0.05 : 0.5;
    std::string text;
    std::vector<uint8_t> allowed(kSampledVocab);
    std::vector<int32_t> ids, preferred, single;
    for (int i = 0; i < most; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      constraint->allowed(allowed);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      mask_seconds += taken.count();
      ++n_masks;
      bool may_end = false;
      ids.clear();
      preferred.clear();
      single.clear();
      for (int32_t id = 0; id < kSampledVocab; ++id) {
        if (allowed[static_cast<size_t>(id)] == 0) continue;
        if (std::find(ends_.begin(), ends_.end(), id) != ends_.end()) {
          may_end = true;
          continue;
        }
        ids.push_back(id);
        const auto index = static_cast<size_t>(id);
        if (i > 40 ? closes_[index] : bytes && is_byte_[index]) preferred.push_back(id);
        if (is_byte_[index]) single.push_back(id);
      }
      if (may_end && (ids.empty() || i > 60 || chance(end))) return text;
      if (ids.empty()) return text + "<nothing is allowed>";
      if (i > 40 && preferred.empty()) preferred = single;
      const auto& from = !preferred.empty() && chance(0.9) ? preferred : ids;
      const int32_t id = from[random_() % from.size()];
      if (!constraint->accept(id)) return text + "<an allowed token was not accepted>";
      text += tokenizer_.token_bytes(id);
    }
    return std::nullopt;
  }

  double mask_seconds = 0;
  int64_t n_masks = 0;

 private:
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }

  const model::Tokenizer& tokenizer_;
  const std::vector<int32_t> ends_;
  std::vector<bool> closes_, is_byte_;
  std::mt19937_64 random_;
};

}  // namespace replayssm::server
