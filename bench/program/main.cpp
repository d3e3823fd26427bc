// replayssm-bench: recurrent layers and a model by the way that state is kept; with a verb, the
// engine under load, or models put together from measured layers.
#include "bench/layers/bench_layers.h"
#include "bench/serve/bench_serve.h"
#include "bench/simulate/bench_simulate.h"
#include "cli/program.h"

int main(int argc, char** argv) {
  using namespace replayssm;
  CLI::App app{"times layers and a model by state mode", "replayssm-bench"};
  bench::add_layers(app);
  bench::add_serve(app);
  bench::add_simulate(app);
  return cli::run_program(app, argc, argv);
}
