// replayssm-bench simulate: what a model that needs several GPUs would do.
#pragma once

#include <CLI/CLI.hpp>

namespace replayssm::bench {

void add_simulate(CLI::App& app);

}  // namespace replayssm::bench
