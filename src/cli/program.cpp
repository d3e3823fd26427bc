#include "cli/program.h"

#include <cstdio>
#include <exception>
#include <new>

#include "cli/common.h"

namespace replayssm::cli {

int report(const CLI::App& app, const std::string& message, int exit_code) {
  std::string line = message;
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), line.c_str());
  return exit_code;
}

int run_program(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return report(app, std::string(e.what()) + " (try --help)", 2);
  } catch (const UsageError& e) {
    return report(app, e.what(), 2);
  } catch (const std::bad_alloc&) {
    return report(app, "out of memory", 1);
  } catch (const std::exception& e) {
    return report(app, e.what(), 1);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    return report(app, "stdout: cannot write", 1);
  }
  return 0;
}

}  // namespace replayssm::cli
