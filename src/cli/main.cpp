// replayssm VERB: one file per verb. Exit 0, 1 for what went wrong, 2 for wrong usage.
#include <cstdio>
#include <exception>

#include "cli/common.h"

int main(int argc, char** argv) {
  using namespace replayssm;
  CLI::App app{"replayssm: exact inference of hybrid state-space models by replay on the grid"};
  app.require_subcommand(1);
  cli::add_generate(app);
  cli::add_logits(app);
  cli::add_inspect(app);
  cli::add_bench(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::fprintf(stderr, "replayssm: %s (try --help)\n", e.what());
    return 2;
  } catch (const cli::UsageError& e) {
    std::fprintf(stderr, "replayssm: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "replayssm: %s\n", e.what());
    return 1;
  }
  return 0;
}
