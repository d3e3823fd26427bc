#include "cells.h"

#include <algorithm>

#include "bench/common/card.h"

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

std::vector<StateMethod> ways_of(DType dtype, int window) {
  if (dtype == DType::kI8) return {StateMethod::kReplay};
  if (window == 1) return {StateMethod::kReplay, StateMethod::kPlain};
  return {StateMethod::kReplay, StateMethod::kSnapshots, StateMethod::kActivationReplay,
          StateMethod::kJointAdvance};
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

const char* Cell::way_name() const { return sweep ? "sweep" : state_method_name(way); }

std::string Cell::name() const {
  return std::string(shape->name) + "/" + dtype_name(dtype) + "/" + way_name() + "/T" +
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
  p.max_window = sweep ? 1 : window;
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
      for (const StateMethod way : ways_of(dtype, window)) {
        cells.push_back({&shape, dtype, way, window, batch, interval});
      }
    }
  }
  cells.push_back({&shape, dtype, StateMethod::kReplay, kSweepTokens, kSweepBatch, interval, true});
  return cells;
}

double must_move_bytes(const Cell& cell) {
  const Problem problem = cell.problem();
  if (!cell.sweep) {
    return cell.batch * step_bytes(problem, cell.way, cell.window, accepted_of(cell.window));
  }
  const StateBytes bytes = state_bytes(problem);
  return cell.batch * (cell.window * (bytes.inputs + bytes.outputs) + bytes.state);
}

double floor_us(double bytes) { return (bytes / kReadBytesPerSecond + kLaunchSeconds) * 1e6; }

}  // namespace replayssm::bench
