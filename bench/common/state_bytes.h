// The bytes that a recurrent layer's decode step cannot avoid, by the way that state is kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bench/state_method.h"
#include "replay/step.h"

namespace replayssm::bench {

// In the order of the tables.
inline constexpr StateMethod kStateMethods[] = {StateMethod::kPlain, StateMethod::kSnapshots,
                                                StateMethod::kActivationReplay,
                                                StateMethod::kJointAdvance, StateMethod::kReplay};

// Of its name (state_method_name()).
std::optional<StateMethod> parse_state_method(const std::string& name);

// Tokens of a window of T that the timings of layers keep: 1 of 1, 2 of 2, 3 of 4, 4 of 8, 8 of 16.
constexpr int accepted_of(int window) {
  return window <= 2 ? window : window <= 4 ? window - 1 : window / 2;
}

// Bytes of one sequence and layer. int8's scales (3 % more) are left out.
struct StateBytes {
  double state = 0;     // the checkpoint, or the plain state
  double ring_row = 0;  // a token's
  double inputs = 0;    // a token's query, key, value, gates and betas
  double outputs = 0;   // a token's
};
StateBytes state_bytes(const Problem& problem);

// Bytes that a step of one sequence with a window of `window` tokens must move, `accepted` of which
// are kept on average. Replay: the checkpoint read, and written once an interval; half an interval
// of ring rows read, the window's written; inputs and outputs.
double step_bytes(const Problem& problem, StateMethod way, int window, double accepted);

}  // namespace replayssm::bench
