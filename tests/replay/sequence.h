// One sequence driven over a Layer: steps with any window and any number of accepted tokens,
// sweeps, folds. It records y of every committed token and the state at every stored checkpoint.
#pragma once

#include <algorithm>
#include <map>
#include <random>

#include "harness.h"

namespace replayssm::test {

// What a token sequence determines.
struct Trace {
  std::map<int64_t, std::vector<float>> y;       // by position
  std::map<int64_t, std::vector<float>> states;  // by grid point
};

// Everything that both traces hold is the same, and `a` covers y of [0, n).
inline void expect_same(const Trace& a, const Trace& b, int64_t n) {
  for (int64_t t = 0; t < n; ++t) {
    const auto at_a = a.y.find(t), at_b = b.y.find(t);
    ASSERT_TRUE(at_a != a.y.end() && at_b != b.y.end()) << "no y at " << t;
    ASSERT_TRUE(same_bits(at_a->second, at_b->second)) << "y differs at " << t;
  }
  for (const auto& [c, state] : a.states) {
    const auto other = b.states.find(c);
    if (other != b.states.end()) {
      ASSERT_TRUE(same_bits(state, other->second)) << "state differs at " << c;
    }
  }
}

class Sequence {
 public:
  // Owns checkpoint slots `slot` and `slot + 1`, folds into the one that it does not read, and uses
  // ring slot `slot`.
  Sequence(Layer& layer, const Inputs& inputs, int slot)
      : layer_(layer), inputs_(&inputs), slot_(slot) {
    state.checkpoint_slot = slot;
    state.ring_slot = slot;
  }
  SequenceState state;
  Trace trace;
  bool in_place = false;  // fold into the slot that is read

  int64_t n() const { return state.n; }

  Row row(int n_tokens, int64_t pending = 0) const {
    const int other = state.checkpoint_slot == slot_ ? slot_ + 1 : slot_;
    return {state.n,
            state.c,
            state.n + pending,
            n_tokens,
            0,
            state.checkpoint_slot,
            in_place ? state.checkpoint_slot : other,
            state.ring_slot};
  }

  // A step that commits `advance` tokens. The inputs of the window may be others (a rejected
  // draft's); only committed tokens are recorded.
  std::vector<float> step(int n_tokens, int advance, const Inputs* inputs = nullptr,
                          int64_t pending = 0) {
    const Row r = row(n_tokens, pending);
    const std::vector<float> y = layer_.run(r, inputs == nullptr ? *inputs_ : *inputs);
    EXPECT_EQ(finish(r, advance, y), Status::kOk);
    return y;
  }
  // Records and commits what a step or sweep over `r` gave (a batch calls it for each row).
  Status finish(const Row& r, int64_t advance, const std::vector<float>& y, bool sweep = false) {
    const int64_t size = layer_.y_size();
    for (int64_t t = r.start; t < r.n + advance; ++t) {
      const float* from = y.data() + (t - r.start) * size;
      trace.y[t].assign(from, from + size);
    }
    const int64_t c = state.c;
    Status status = Status::kOk;
    if (sweep) {
      status = commit_sweep(layer_.problem().grid, r, state);
    } else {
      status = commit_step(layer_.problem().grid, r, advance, state);
    }
    if (state.c != c) trace.states[state.c] = layer_.state(state.checkpoint_slot);
    return status;
  }
  void fold_only() { step(0, 0); }

  void sweep(int64_t n_tokens) {
    const Row r = row(static_cast<int>(n_tokens));
    const std::vector<float> y = layer_.run(r, *inputs_, /*sweep=*/true);
    EXPECT_EQ(finish(r, n_tokens, y, /*sweep=*/true), Status::kOk);
  }

  // Windows of `window` tokens, all accepted, up to position `end`.
  void decode_to(int64_t end, int window) {
    while (state.n < end) {
      const int t = static_cast<int>(std::min<int64_t>(window, end - state.n));
      step(t, t);
    }
  }

 private:
  Layer& layer_;
  const Inputs* inputs_;
  int slot_;
};

inline InputDistribution distribution_of(uint64_t seed, float value_scale = 1.0f) {
  InputDistribution distribution;
  distribution.seed = seed;
  distribution.value_scale = value_scale;
  return distribution;
}

// A sequence decoded token by token, never drafted.
inline Trace plain_trace(const Problem& p, const Backend& backend, const Inputs& inputs, int64_t n,
                         ThreadPool& pool) {
  Layer layer(p, backend, 3, pool);
  Sequence sequence(layer, inputs, 1);
  sequence.decode_to(n, 1);
  sequence.fold_only();
  return sequence.trace;
}

}  // namespace replayssm::test
