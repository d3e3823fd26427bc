// `replayssm-bench serve --device cuda`: whole models on the GPU, by batch, window and way of
// keeping state.
#pragma once

#include <string>
#include <vector>

namespace replayssm::bench {

struct BenchServeCudaFlags {
  std::string folder;  // a model's; or
  std::string config;  // a configuration file, with
  bool dummy_weights = false;
  std::string weights = "bf16";  // or fp8, with dummy weights
  std::vector<int> batches;
  std::vector<int> windows;
  std::vector<std::string> modes = {"plain", "replay"};
  std::vector<std::string> checkpoints = {"fp32", "fp16"};
  double accepted = 3.0;  // of windows of four tokens and more; at most the window
  int context = 1024;
  int steps = 200;
  bool exact = false;
  bool headline = false;      // the cells of the targets' main table, then those of the figure
  double cell_seconds = 1e9;  // after which a cell's first 200 steps are enough
  double seconds = 1e9;       // start no cell after this time
  std::string out = "bench/results";
};

// Throws cli::UsageError for a wrong flag, Error in a build without CUDA.
void run_bench_serve_cuda(const BenchServeCudaFlags& flags);

}  // namespace replayssm::bench
