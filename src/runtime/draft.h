// Drafters: they propose the tokens after the last one; the target draws its own token at each
// position and a draft is accepted if and only if it equals it. So a drafter changes speed, never
// text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/sample.h"
#include "runtime/runner.h"

namespace replayssm {

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Up to k ids to follow `tokens` (the prompt and all text so far, never empty). A drafter serves
  // one text: each call's tokens go on from those of the last.
  virtual std::vector<int32_t> propose(std::span<const int32_t> tokens, int32_t k) = 0;
  // Bytes that the drafter holds.
  virtual int64_t bytes() const { return 0; }
};

// Prompt lookup: the longest suffix of at most 8 and at least 2 tokens that occurred before, latest
// occurrence first; proposes what followed it, and where that runs out, the same again.
std::unique_ptr<Drafter> make_ngram_drafter();

// Tests: one list of ids a step from a JSON file ([[1,2],[],[7]]); past its end, none. Throws Error
// naming the file; ids must lie in [0, vocab).
std::unique_ptr<Drafter> make_script_drafter(const std::string& file, int64_t vocab);
std::unique_ptr<Drafter> make_script_drafter(std::vector<std::vector<int32_t>> steps);

// A second, smaller model; its state is rolled back as the target's is. It draws with the same
// generator at the same position. The context, which draws, must outlive it.
std::unique_ptr<Drafter> make_model_drafter(std::shared_ptr<const Model> model,
                                            const Device& device, const ops::Context& context,
                                            int64_t max_positions,
                                            const ops::SamplerParams& sampling);

}  // namespace replayssm
