// The time of a decode step of a model over several GPUs with tensor parallelism, put together:
// recurrent layers as measured on one GPU, everything else from its bytes and products.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/card.h"
#include "bench/simulate/layer_times.h"
#include "model/spec.h"

namespace replayssm::bench {

// Shares and the time of small kernels are those of whole models measured on one GPU, the link's
// figures are assumed.
struct SimulatedMachine {
  int32_t n_gpus = 1;
  double memory_bytes = 130e9;  // a GPU, for weights and sequences
  double read_rate = kReadBytesPerSecond;
  double product_rate = kFlopsPerSecond;  // in bf16; FP8 twice that
  double product_share = 0.7;             // of these two that products reach
  double attention_share = 0.8;           // and attention
  double small_share = 0.6;               // of read_rate that small kernels reach
  double launch = kLaunchSeconds;         // of each
  double link_rate = 300e9;               // bytes/s of an all-reduce
  double reduce_latency = 10e-6;          // of each
};

struct SimulatedStep {
  int64_t batch = 1;
  int64_t context = 1024;
  bool fp8 = false;                  // weights of the projections
  const LayerTime* layer = nullptr;  // state way, window, dtype
};

struct StepParts {
  double weights = 0, state = 0, kv = 0, reduce = 0, rest = 0;  // seconds
  double weights_floor = 0, kv_floor = 0;                       // at the machine's full rates
  double total() const { return weights + state + kv + reduce + rest; }
};

// Refuses a number of GPUs that does not divide the heads.
StepParts simulate_step(const ModelSpec& spec, const SimulatedMachine& machine,
                        const SimulatedStep& step);

// Of a GPU: its share of the weights, and of one sequence.
double weights_a_gpu(const ModelSpec& spec, const SimulatedMachine& machine, bool fp8);
double sequence_a_gpu(const ModelSpec& spec, const SimulatedMachine& machine,
                      const SimulatedStep& step);

}  // namespace replayssm::bench
