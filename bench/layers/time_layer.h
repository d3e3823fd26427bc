// Timing of one recurrent layer's state step: plain, with snapshots, and by replay (the other ways
// are the GPU's).
#pragma once

#include <string>
#include <vector>

#include "bench/state_method.h"
#include "core/thread_pool.h"
#include "replay/kernels.h"

namespace replayssm::bench {

// A layer of a published model (docs/benchmarks.md names the source).
struct LayerGeometry {
  std::string name;
  Family family;
  int n_heads, n_key_heads, value_dim, key_dim;
};
const std::vector<LayerGeometry>& layer_geometries();

struct LayerCase {
  LayerGeometry geometry;
  StateMethod way = StateMethod::kReplay;
  DType state = DType::kF32;  // checkpoint, or plain state
  int interval = 16;
  int batch = 64;
  int window = 1;    // T
  int accepted = 1;  // tokens of each window that stand
};

struct LayerTiming {
  double us = 0;         // a step, mean over a fold cycle, median of cycles
  double must_move = 0;  // bytes of a step (step_bytes())
};

LayerTiming time_layer(const LayerCase& layer_case, ThreadPool& pool);

// Bytes per second of reading a buffer far larger than the caches, all threads, best of several.
double measure_read_bandwidth(ThreadPool& pool);

}  // namespace replayssm::bench
