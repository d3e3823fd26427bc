// A cell's memory and launches.
#pragma once

#include <functional>
#include <string>

#include "cells.h"
#include "device.h"

namespace replayssm::bench {

struct Prepared {
  int n_steps = 0;  // a whole number of fold cycles that goes through all pools
  std::function<void(int step, cudaStream_t stream)> launch;
  std::string reason;  // why there is no kernel for the cell; then the rest is empty
};

// The arena holds the cell's memory until it is reset. Throws OutOfMemory.
//
// State pools of at least 320 MB in rotation, several times the L2 cache (from batch 1024 on: one
// pool). Activations are one set, as if the layer before had just written them. At step s sequence
// i is at phase (i + s) mod B of its interval (spread evenly below batch B), and folds if a
// step that advanced by the accepted tokens just passed a grid point: over B steps every sequence
// takes every phase once, as in steady decoding.
Prepared prepare(const Cell& cell, Arena& arena);

}  // namespace replayssm::bench
