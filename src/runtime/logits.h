// Logits at every position of a text, by each way to drive a Runner. All give the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/runner.h"

namespace replayssm {

enum class LogitsMode {
  kPrefill,  // in passes as long as the runner takes
  kDecode,   // token by token
  kVerify,   // in windows, each first fed with wrong ids from a random accepted point on, rejected
             // there, and the rest fed again
};

struct LogitsParams {
  LogitsMode mode = LogitsMode::kPrefill;
  int32_t window = 8;        // kVerify: tokens a window, at most the model's max_window
  uint64_t reject_seed = 0;  // kVerify: draws the accepted points and the wrong ids
};

// [ids.size(), vocab]. Throws Error if there are no ids, one is not in the vocabulary, or they do
// not fit the context.
std::vector<float> logits_of(Runner& runner, std::span<const int32_t> ids,
                             const LogitsParams& params);

}  // namespace replayssm
