// replayssm VERB: one file per verb. Exit 0, 1 for what went wrong, 2 for wrong usage.
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "cli/common.h"

namespace {

// Whatever the message quotes (a file name, an argument), it takes one line.
int report(const std::string& message, int exit_code) {
  std::string line = message;
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  std::fprintf(stderr, "replayssm: %s\n", line.c_str());
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace replayssm;
  CLI::App app{"replayssm: exact inference of hybrid state-space models by replay on the grid"};
  app.require_subcommand(1);
  cli::add_generate(app);
  cli::add_logits(app);
  cli::add_inspect(app);
  cli::add_bench(app);
  cli::add_serve(app);
  cli::add_quantize(app);
  std::string verbs;
  bool known = argc > 1 && argv[1][0] == '-';  // --help, or for the parser to refuse
  for (const CLI::App* verb : app.get_subcommands({})) {
    known = known || (argc > 1 && verb->get_name() == argv[1]);
    verbs += " " + verb->get_name();
  }
  if (!known) {
    const std::string what = argc < 2 ? "give a verb" : concat("no verb \"", argv[1], "\"");
    return report(what + "; there are:" + verbs + " (try --help)", 2);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return report(std::string(e.what()) + " (try --help)", 2);
  } catch (const cli::UsageError& e) {
    return report(e.what(), 2);
  } catch (const std::bad_alloc&) {
    return report("out of memory", 1);
  } catch (const std::exception& e) {
    return report(e.what(), 1);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) return report("stdout: cannot write", 1);
  return 0;
}
