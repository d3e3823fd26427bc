// The one list of problems that every backend and every property is run over.
#pragma once

#include <string>
#include <vector>

#include "replay/step.h"

namespace replayssm::test {

struct Case {
  std::string name;
  Problem problem;
};

inline Problem problem_of(Family family, int n_heads, int n_key_heads, int value_dim, int key_dim,
                          int interval, int max_window) {
  Problem p;
  p.family = family;
  p.n_heads = n_heads;
  p.n_key_heads = n_key_heads;
  p.value_dim = value_dim;
  p.key_dim = key_dim;
  p.grid = {interval, Grid::rows_for(interval, max_window)};
  p.max_window = max_window;
  return p;
}

inline Problem bounded_gate(Problem p) {
  p.decay_gate = DecayGate::kBounded;
  p.decay_lower_bound = -5.0f;
  return p;
}

inline Problem with_dtypes(Problem p, DType activation, DType ring, DType checkpoint) {
  p.activation = activation;
  p.ring = ring;
  p.checkpoint = checkpoint;
  return p;
}

inline std::string name_of(const Problem& p) {
  auto number = [](int64_t n) { return std::to_string(n); };
  return std::string(family_name(p.family)) + (p.decay_gate == DecayGate::kBounded ? "+" : "") +
         " " + number(p.n_heads) + "/" + number(p.n_key_heads) + " " + number(p.value_dim) + "x" +
         number(p.key_dim) + " B" + number(p.grid.interval) + " T" + number(p.max_window) + " " +
         dtype_name(p.activation) + " ring " + dtype_name(p.ring) + " checkpoint " +
         dtype_name(p.checkpoint) + (p.beta_scale == 1.0f ? "" : " beta*" + number(p.beta_scale));
}

inline Case case_of(const Problem& p) { return {name_of(p), p}; }

// Published geometries cut to few heads, every interval, head ratio and group count, and dims that
// fill no vector; dtypes vary along.
inline std::vector<Case> shape_cases() {
  constexpr Family kM = Family::kMamba2, kG = Family::kGdn, kK = Family::kKda;
  constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBf = DType::kBF16, kI8 = DType::kI8;
  std::vector<Case> cases;
  auto add = [&](Problem p, DType activation, DType ring, DType checkpoint) {
    cases.push_back(case_of(with_dtypes(p, activation, ring, checkpoint)));
  };
  // family, heads, key heads or groups, V or P, K or N, B, T_max
  add(problem_of(kM, 8, 8, 64, 128, 16, 8), kBf, kF16, kF16);
  add(problem_of(kM, 12, 1, 80, 128, 16, 4), kF32, kF32, kF32);
  add(problem_of(kM, 6, 2, 32, 64, 8, 8), kF32, kF16, kI8);
  add(problem_of(kM, 2, 1, 128, 256, 32, 4), kBf, kBf, kBf);
  add(problem_of(kM, 8, 2, 24, 96, 64, 8), kF32, kF32, kF32);
  add(problem_of(kM, 3, 1, 24, 20, 16, 16), kF32, kBf, kF16);
  add(problem_of(kM, 2, 2, 80, 256, 8, 1), kBf, kF32, kI8);
  add(problem_of(kM, 5, 1, 32, 64, 64, 3), kF32, kF16, kF32);
  add(problem_of(kG, 2, 1, 128, 128, 16, 8), kBf, kF16, kF16);
  add(problem_of(kG, 4, 4, 64, 64, 32, 5), kF32, kF32, kF32);
  add(problem_of(kG, 3, 1, 192, 96, 16, 4), kF32, kF16, kI8);
  add(problem_of(kG, 8, 2, 32, 128, 8, 3), kBf, kBf, kF32);
  add(problem_of(kG, 12, 1, 24, 20, 64, 8), kF32, kF32, kF32);
  add(problem_of(kG, 4, 2, 80, 256, 32, 32), kF32, kF16, kBf);
  add(problem_of(kG, 16, 8, 24, 20, 8, 8), kF32, kF32, kF16);
  add(problem_of(kG, 1, 1, 1, 1, 8, 2), kF32, kF32, kF32);
  add(problem_of(kK, 2, 2, 128, 128, 16, 8), kBf, kF16, kF16);
  add(bounded_gate(problem_of(kK, 3, 3, 24, 20, 8, 8)), kF32, kF32, kF32);
  add(bounded_gate(problem_of(kK, 1, 1, 192, 96, 32, 4)), kF32, kF16, kI8);
  add(problem_of(kK, 4, 4, 64, 64, 64, 16), kF32, kF32, kF32);
  add(bounded_gate(problem_of(kK, 2, 2, 80, 256, 16, 3)), kBf, kBf, kBf);
  return cases;
}

// Every combination of dtypes at a small odd geometry: Mamba-2, GDN, KDA with both gates. Every
// other delta-rule case doubles beta.
inline std::vector<Case> dtype_cases() {
  std::vector<Case> cases;
  bool twice = false;
  for (DType activation : {DType::kF32, DType::kBF16}) {
    for (DType ring : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (DType checkpoint : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
        for (Problem p : {problem_of(Family::kMamba2, 4, 2, 24, 20, 16, 5),
                          problem_of(Family::kGdn, 4, 2, 24, 20, 16, 5),
                          problem_of(Family::kKda, 2, 2, 24, 20, 8, 5),
                          bounded_gate(problem_of(Family::kKda, 2, 2, 24, 20, 8, 5))}) {
          twice = !twice;
          if (twice && p.family != Family::kMamba2) p.beta_scale = 2.0f;
          cases.push_back(case_of(with_dtypes(p, activation, ring, checkpoint)));
        }
      }
    }
  }
  return cases;
}

// A few problems in which everything matters, for the properties that need many runs.
inline std::vector<Case> core_cases() {
  return {
      case_of(with_dtypes(problem_of(Family::kMamba2, 6, 2, 24, 20, 16, 8), DType::kF32,
                          DType::kF16, DType::kI8)),
      case_of(with_dtypes(problem_of(Family::kMamba2, 12, 1, 40, 64, 8, 5), DType::kBF16,
                          DType::kF32, DType::kF16)),
      case_of(with_dtypes(problem_of(Family::kGdn, 6, 1, 24, 20, 16, 8), DType::kF32, DType::kF32,
                          DType::kF32)),
      case_of(with_dtypes(problem_of(Family::kGdn, 4, 2, 40, 96, 8, 8), DType::kBF16, DType::kF16,
                          DType::kF16)),
      case_of(with_dtypes(problem_of(Family::kGdn, 3, 3, 24, 20, 32, 20), DType::kF32, DType::kBF16,
                          DType::kI8)),
      case_of(with_dtypes(problem_of(Family::kKda, 2, 2, 24, 20, 16, 8), DType::kF32, DType::kF16,
                          DType::kBF16)),
      case_of(with_dtypes(bounded_gate(problem_of(Family::kKda, 3, 3, 40, 36, 8, 3)), DType::kBF16,
                          DType::kF32, DType::kI8)),
  };
}

}  // namespace replayssm::test
