// One cell of `replayssm-bench serve --device cuda`: steady decoding of many sequences at a given
// rate of acceptance, with contexts that stand in for real ones.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/state_method.h"
#include "model/families/family.h"
#include "replay/types.h"

namespace replayssm::bench {

struct ServeCell {
  StateMethod way = StateMethod::kReplay;
  DType checkpoint = DType::kF16;
  int32_t window = 1;
  double accepted = 1;  // tokens that stand a step, on average: 1 .. window
  int32_t batch = 1;
  int32_t context = 1024;

  std::string name() const;  // replay/fp16/T4/A3.0/B256/C1024
};

struct ServeModel {
  ModelDescription description;
  std::string folder;  // empty: dummy weights
  bool fp8 = false;    // weights of the large products: scales by blocks (GDN models) or by output
};

// How long a cell is timed: so many steps, or kMinSteps if they take longer.
struct CellLength {
  static constexpr int kMinSteps = 200;
  int steps = kMinSteps;
  double seconds = 1e9;
};

// A steady state: sequence i stands at position context - 64 + 5 i mod 128, and goes back by 128
// when it has passed context + 64, as if another of the same length took its place; so the phases
// of the grid are even, and so is the length of the cache. Throws Error if the card does not hold
// it.
nlohmann::json measure_cell(const ServeModel& model, const ServeCell& cell,
                            const CellLength& length, bool exact);

}  // namespace replayssm::bench
