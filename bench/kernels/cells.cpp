#include "cells.h"

#include <algorithm>

namespace replayssm::bench {
namespace {

constexpr int kWindows[] = {1, 2, 4, 8, 16};
constexpr int kBatches[] = {1, 8, 32, 64, 128, 256, 512, 1024};
constexpr int kSweepTokens = 2048, kSweepBatch = 16;
constexpr const char* kHeadlineShapes[] = {"qw4b", "nano30b", "nano4b"};
constexpr int kHeadlineWindows[] = {1, 4, 8};
constexpr int kHeadlineBatches[] = {1, 32, 256};

template <typename List, typename T>
bool has(const List& list, const T& value) {
  return std::find(std::begin(list), std::end(list), value) != std::end(list);
}

std::vector<Way> ways_of(DType dtype, int window) {
  if (dtype == DType::kI8) return {Way::kReplay};
  if (window == 1) return {Way::kReplay, Way::kPlain};
  return {Way::kReplay, Way::kSnapshots, Way::kActivationReplay, Way::kJointAdvance};
}

}  // namespace

const std::vector<LayerShape>& layer_shapes() {
  static const std::vector<LayerShape> shapes = {
      {"qw4b", "Qwen3.5-4B, 35B-A3B, Qwen3-Next-80B", Family::kGdn, 32, 16, 128, 128},
      {"nano30b", "Nemotron-3-Nano-30B", Family::kMamba2, 64, 8, 64, 128},
      {"nano4b", "Nemotron-3-Nano-4B", Family::kMamba2, 96, 8, 80, 128},
      {"super", "Nemotron-3-Super", Family::kMamba2, 128, 8, 64, 128},
      {"granite", "Granite-4.0-H-Small", Family::kMamba2, 128, 1, 64, 128},
      {"qw122b", "Qwen3.5-122B-A10B", Family::kGdn, 64, 16, 128, 128},
      {"kimi", "Kimi-Linear", Family::kKda, 32, 32, 128, 128},
  };
  return shapes;
}

const char* way_name(Way way) {
  switch (way) {
    case Way::kReplay:
      return "replay";
    case Way::kPlain:
      return "plain";
    case Way::kSnapshots:
      return "snapshots";
    case Way::kActivationReplay:
      return "activation_replay";
    case Way::kJointAdvance:
      return "joint_advance";
    case Way::kSweep:
      return "sweep";
  }
  return "?";
}

std::string Cell::name() const {
  return std::string(shape->name) + "/" + dtype_name(dtype) + "/" + way_name(way) + "/T" +
         std::to_string(window) + "/B" + std::to_string(batch);
}

Problem Cell::problem() const {
  Problem p;
  p.family = shape->family;
  p.n_heads = shape->n_heads;
  p.n_key_heads = shape->n_key_heads;
  p.value_dim = shape->value_dim;
  p.key_dim = shape->key_dim;
  // A multiple of B, so that an interval's rows are contiguous.
  p.max_window = way == Way::kSweep ? 1 : window;
  const int rows = Grid::rows_for(interval, p.max_window);
  p.grid = {interval, (rows + interval - 1) / interval * interval};
  p.activation = DType::kBF16;
  p.ring = shape->family == Family::kMamba2 ? DType::kBF16 : DType::kF16;
  p.checkpoint = dtype;
  return p;
}

std::vector<Cell> cells_of(const LayerShape& shape, DType dtype, int interval, bool headline) {
  std::vector<Cell> cells;
  if (headline && !has(kHeadlineShapes, std::string(shape.name))) return cells;
  for (const int batch : kBatches) {
    if (headline && !has(kHeadlineBatches, batch)) continue;
    for (const int window : kWindows) {
      if (headline && !has(kHeadlineWindows, window)) continue;
      for (const Way way : ways_of(dtype, window)) {
        cells.push_back({&shape, dtype, way, window, batch, interval});
      }
    }
  }
  cells.push_back({&shape, dtype, Way::kSweep, kSweepTokens, kSweepBatch, interval});
  return cells;
}

double must_move_bytes(const Cell& cell) {
  const Problem p = cell.problem();
  const double values = double(p.n_heads) * p.value_dim, keys = double(p.n_key_heads) * p.key_dim;
  const double gates = 4.0 * p.n_heads * (p.family == Family::kKda ? p.key_dim : 1);
  const double betas = p.family == Family::kMamba2 ? 0 : 4.0 * p.n_heads;
  const double state = values * p.key_dim * dtype_bytes(cell.dtype);
  const double ring_row = (values + keys) * dtype_bytes(p.ring) + gates;
  const double inputs = 2 * (2 * keys + values) + gates + betas, outputs = 2 * values;
  const int window = cell.window, accepted = accepted_of(window);
  double bytes = window * (inputs + outputs);
  switch (cell.way) {
    case Way::kReplay:
      bytes += state * (1 + double(accepted) / cell.interval) +
               ring_row * (cell.interval / 2.0 + window);
      break;
    case Way::kPlain:
    case Way::kSnapshots:
      bytes += state * (1 + window);
      break;
    case Way::kActivationReplay:
      bytes += state * 3 + accepted * inputs;
      break;
    case Way::kJointAdvance:
      bytes += state * 2 + accepted * inputs;
      break;
    case Way::kSweep:
      bytes += state;
      break;
  }
  return bytes * cell.batch;
}

double floor_us(double bytes) { return bytes / 4.55e12 * 1e6 + 2; }

}  // namespace replayssm::bench
