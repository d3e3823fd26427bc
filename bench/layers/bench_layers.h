// replayssm-bench without a verb: recurrent layers at published geometries and a whole model.
#pragma once

#include <CLI/CLI.hpp>

namespace replayssm::bench {

void add_layers(CLI::App& app);

}  // namespace replayssm::bench
