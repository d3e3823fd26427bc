// A program of verbs: it parses its arguments and runs what they ask for.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace replayssm::cli {

// "NAME: MESSAGE" on stderr, on one line whatever the message quotes. Returns exit_code.
int report(const CLI::App& app, const std::string& message, int exit_code);

// Returns the exit code: 0, 1 for what went wrong, 2 for wrong usage. The program's name in
// messages is the app's.
int run_program(CLI::App& app, int argc, char** argv);

}  // namespace replayssm::cli
