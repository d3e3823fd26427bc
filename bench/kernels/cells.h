// What bench_kernels measures: a cell is one layer shape, state dtype, way, window and batch.
// Replay is plan_cuda's, the other ways are those of replay/cuda/baselines.
#pragma once

#include <string>
#include <vector>

#include "bench/common/state_bytes.h"
#include "replay/step.h"

namespace replayssm::bench {

struct LayerShape {
  const char* name;   // in file names and cell names
  const char* model;  // whose layer it is
  Family family;
  int n_heads, n_key_heads, value_dim, key_dim;
};
const std::vector<LayerShape>& layer_shapes();

struct Cell {
  const LayerShape* shape;
  DType dtype;  // of the checkpoint or state
  StateMethod way;
  int window;
  int batch;
  int interval;
  bool sweep = false;  // replay of a whole prompt of `window` tokens, from nothing

  const char* way_name() const;  // "sweep", or the way's
  std::string name() const;      // shape/dtype/way/T4/B256
  Problem problem() const;
};

// Every cell of a shape and dtype; `headline`: those that the targets' main table speaks of.
std::vector<Cell> cells_of(const LayerShape& shape, DType dtype, int interval, bool headline);

// step_bytes() of the batch. A sweep: inputs and outputs, and the last checkpoint.
double must_move_bytes(const Cell& cell);
// Those bytes at the card's read rate, and a launch.
double floor_us(double bytes);

}  // namespace replayssm::bench
