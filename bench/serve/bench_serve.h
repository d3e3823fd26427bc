// replayssm-bench serve: tokens/s of the engine under requests that run side by side.
#pragma once

#include <CLI/CLI.hpp>

namespace replayssm::bench {

void add_serve(CLI::App& app);

}  // namespace replayssm::bench
