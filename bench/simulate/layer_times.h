// Measured times of recurrent layers on the device: the files of tools/gpu_bench.sh.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/state_method.h"
#include "replay/types.h"

namespace replayssm::bench {

// One way of keeping the state, one window and one dtype, at several batch sizes.
struct LayerTime {
  Family family = Family::kGdn;
  int32_t n_heads = 0;  // of the layer that was measured
  int32_t value_dim = 0;
  int32_t key_dim = 0;
  DType dtype = DType::kF32;  // of state or checkpoint
  StateMethod way = StateMethod::kReplay;
  int32_t window = 1;
  double accepted = 1;           // tokens that stand a step
  std::map<int64_t, double> us;  // by batch
  std::string file, card, date;

  // Of `batch` rows of a layer with `heads` such heads: linear between what was measured, by the
  // number of heads in all.
  double seconds(int64_t batch, int32_t heads) const;
};

// Every h200_*.json of a folder. Refuses a folder without any.
std::vector<LayerTime> read_layer_times(const std::string& folder);

}  // namespace replayssm::bench
