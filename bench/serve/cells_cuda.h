// One cell of `replayssm-bench serve --device cuda`: steady decoding of many sequences at a given
// rate of acceptance, with contexts that stand in for real ones.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/state_method.h"
#include "model/families/family.h"
#include "replay/types.h"

namespace replayssm::bench {

struct ServeCell {
  StateMethod method = StateMethod::kReplay;
  DType checkpoint = DType::kF16;
  int32_t window = 1;
  double accepted = 1;  // tokens committed a step, on average: 1 .. window
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

// A baseline's cell, by the benches' own loop (bench/baselines/loop_cuda.h). Throws Error if the
// card does not hold it.
nlohmann::json measure_loop(const ServeModel& model, const ServeCell& cell,
                            const CellLength& length, bool exact);

// Cells of replay that differ in their batch alone, the smallest first, by the engine that `serve`
// runs (engine_cells.h). Throws Error if the card does not hold the last.
void measure_engine_cells(const ServeModel& model, const std::vector<ServeCell>& cells,
                          const CellLength& length, bool exact,
                          const std::function<void(const ServeCell&, nlohmann::json)>& done);

}  // namespace replayssm::bench
