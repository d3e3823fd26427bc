// replayssm bench simulate: what a model that needs several GPUs would do.
#pragma once

#include <CLI/CLI.hpp>

namespace replayssm::cli {

void add_bench_simulate(CLI::App& bench);

}  // namespace replayssm::cli
