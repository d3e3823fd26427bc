// A load of concurrent requests, and what was seen of each answer.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/engine.h"
#include "server/http/stream_client.h"

namespace replayssm::bench {

struct LoadRequest {
  std::vector<int32_t> prompt;
  int64_t new_tokens = 0;
  int32_t draft_tokens = 0;
};

// Seconds of one clock.
struct SeenAnswer {
  double asked = 0;
  std::vector<double> parts;  // when each part of the answer came: one a step, or more steps
  int64_t n_tokens = 0;
  int64_t drafted = 0, accepted = 0;
};

struct LoadFigures {
  double tokens_per_second = 0;             // from when all have begun until the first has ended
  double total_tokens_per_second = 0;       // all tokens, from the first asked to the last part
  double step_ms_p50 = 0, step_ms_p99 = 0;  // between two parts of an answer, in that time
  double first_ms_p50 = 0;                  // from asked to the first part
  double tokens_a_step = 0;                 // of one answer
  int64_t drafted = 0, accepted = 0;
};

// Throws Error if the answers did not run side by side.
LoadFigures load_figures(const std::vector<SeenAnswer>& answers);

// All at once, greedily, to their length.
std::vector<SeenAnswer> run_load(Engine& engine, const std::vector<LoadRequest>& requests);
// The same from a server, in streams.
std::vector<SeenAnswer> run_load(const server::ServerAddress& server,
                                 const std::vector<LoadRequest>& requests);

}  // namespace replayssm::bench
