// replayssm bench serve: tokens/s of the engine under requests that run side by side.
#pragma once

#include <CLI/CLI.hpp>

namespace replayssm::cli {

void add_bench_serve(CLI::App& bench);

}  // namespace replayssm::cli
