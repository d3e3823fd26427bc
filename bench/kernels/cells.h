// What bench_kernels measures: a cell is one layer shape, state dtype, way, window and batch.
#pragma once

#include <string>
#include <vector>

#include "replay/step.h"

namespace replayssm::bench {

struct LayerShape {
  const char* name;   // in file names and cell names
  const char* model;  // whose layer it is
  Family family;
  int n_heads, n_key_heads, value_dim, key_dim;
};
const std::vector<LayerShape>& layer_shapes();

// kReplay and kSweep are plan_cuda's step and sweep (a window is then a whole prompt, from
// nothing); the others are the methods of bench/baselines.
enum class Way { kReplay, kPlain, kSnapshots, kActivationReplay, kJointAdvance, kSweep };
const char* way_name(Way way);

struct Cell {
  const LayerShape* shape;
  DType dtype;  // of the checkpoint or state
  Way way;
  int window;
  int batch;
  int interval;

  std::string name() const;  // shape/dtype/way/T4/B256
  Problem problem() const;
};

// Every cell of a shape and dtype; `headline`: those that the targets' main table speaks of.
std::vector<Cell> cells_of(const LayerShape& shape, DType dtype, int interval, bool headline);

// Accepted tokens of a window of T: 1 of 1, 2 of 2, 3 of 4, 4 of 8, 8 of 16.
constexpr int accepted_of(int window) {
  return window <= 2 ? window : window == 4 ? 3 : window / 2;
}

// Bytes that a step must move. Replay: the checkpoint read, and written once an interval; half an
// interval of ring rows read, the window's written; inputs and outputs. int8's scales (3 % more)
// are left out. A sweep: inputs and outputs, and the last checkpoint.
double must_move_bytes(const Cell& cell);
// Those bytes at the best read rate seen on an H200 (4.55 TB/s), and 2 us for a launch.
double floor_us(double bytes);

}  // namespace replayssm::bench
