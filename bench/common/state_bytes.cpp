#include "bench/common/state_bytes.h"

namespace replayssm::bench {

std::optional<StateMethod> parse_state_method(const std::string& name) {
  for (const StateMethod way : kStateMethods) {
    if (name == state_method_name(way)) return way;
  }
  return std::nullopt;
}

StateBytes state_bytes(const Problem& p) {
  const double values = double(p.n_heads) * p.value_dim, keys = double(p.n_key_heads) * p.key_dim;
  const double gates = 4.0 * p.n_heads * (p.family == Family::kKda ? p.key_dim : 1);
  const double betas = p.family == Family::kMamba2 ? 0 : 4.0 * p.n_heads;
  const auto activation = static_cast<double>(dtype_bytes(p.activation));
  return {values * p.key_dim * dtype_bytes(p.checkpoint),
          (values + keys) * dtype_bytes(p.ring) + gates,
          activation * (2 * keys + values) + gates + betas, activation * values};
}

double step_bytes(const Problem& problem, StateMethod way, int window, double accepted) {
  const StateBytes b = state_bytes(problem);
  const double interval = problem.grid.interval;
  const double io = window * (b.inputs + b.outputs);
  switch (way) {
    case StateMethod::kReplay:
      return io + b.state * (1 + accepted / interval) + b.ring_row * (interval / 2 + window);
    case StateMethod::kPlain:
    case StateMethod::kSnapshots:
      return io + b.state * (1 + window);
    case StateMethod::kActivationReplay:
      return io + b.state * 3 + accepted * b.inputs;
    case StateMethod::kJointAdvance:
      return io + b.state * 2 + accepted * b.inputs;
  }
  return 0;
}

}  // namespace replayssm::bench
