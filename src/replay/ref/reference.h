// The recurrences in double, plain loops as in the formulas of step.h. Slow, and the truth that
// every backend is held to. One object is one sequence of one layer.
#pragma once

#include <cstdint>
#include <vector>

#include "replay/step.h"

namespace replayssm::ref {

// The layer's parameters, as in StepArgs.
struct Parameters {
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  const float* skip = nullptr;
};

// One token's inputs, as the backend sees them (already rounded to its activation dtype).
struct TokenInputs {
  const float* query = nullptr;
  const float* key = nullptr;
  const float* value = nullptr;
  const float* gate = nullptr;
  const float* beta = nullptr;
};

// A token's inputs after norms and gates, in double.
struct Prepared {
  std::vector<double> query, key;  // [n_key_heads, key_dim]
  std::vector<double> value;       // [n_heads, value_dim]
  std::vector<double> log_decay;   // [n_heads], KDA [n_heads, key_dim]
  std::vector<double> scale;       // [n_heads]: Mamba-2's dt, else beta
};
Prepared prepare(const Problem& problem, const Parameters& parameters, const TokenInputs& inputs);

// S_t from S_{t-1}, without any rounding.
class Recurrence {
 public:
  Recurrence(const Problem& problem, const Parameters& parameters);
  // Appends a token; y is [n_heads, value_dim].
  std::vector<double> append(const TokenInputs& inputs);
  const std::vector<double>& state() const { return state_; }  // [n_heads, value_dim, key_dim]

 private:
  Problem problem_;
  Parameters parameters_;
  std::vector<double> state_;
};

// Replay on the grid with the backend's rounding points: ring rows in the ring's dtype, the
// checkpoint in its dtype at every grid point; all sums in double.
class GridReplay {
 public:
  GridReplay(const Problem& problem, const Parameters& parameters);
  std::vector<double> append(const TokenInputs& inputs);
  int64_t n() const { return n_; }
  // The checkpoint at g(n), folded as soon as its interval is complete.
  const std::vector<double>& checkpoint() const { return state_; }

 private:
  struct RingRow {
    std::vector<double> value, key, log_decay, scale;
  };
  std::vector<double> decay(const RingRow& from, const RingRow& to, int head) const;
  void fold();

  Problem problem_;
  Parameters parameters_;
  std::vector<double> state_;
  std::vector<RingRow> rows_;  // the current interval; log_decay holds prefix sums
  int64_t n_ = 0;
};

}  // namespace replayssm::ref
