// replayssm VERB: one file per verb. Exit 0, 1 for what went wrong, 2 for wrong usage.
#include <string>

#include "cli/common.h"
#include "cli/program.h"

int main(int argc, char** argv) {
  using namespace replayssm;
  CLI::App app{"exact inference of hybrid state-space models by replay on the grid", "replayssm"};
  app.require_subcommand(1);
  cli::add_generate(app);
  cli::add_logits(app);
  cli::add_inspect(app);
  cli::add_serve(app);
  cli::add_quantize(app);
  for (CLI::App* verb : app.get_subcommands({})) cli::refuse_empty_values(*verb);
  std::string verbs;
  bool known = argc > 1 && argv[1][0] == '-';  // --help, or for the parser to refuse
  for (const CLI::App* verb : app.get_subcommands({})) {
    known = known || (argc > 1 && verb->get_name() == argv[1]);
    verbs += " " + verb->get_name();
  }
  if (argc > 1 && std::string(argv[1]) == "bench") {
    return cli::report(app, "bench is a program of its own: replayssm-bench", 2);
  }
  if (!known) {
    const std::string what = argc < 2 ? "give a verb" : concat("no verb \"", argv[1], "\"");
    return cli::report(app, what + "; there are:" + verbs + " (try --help)", 2);
  }
  return cli::run_program(app, argc, argv);
}
