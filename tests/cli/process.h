// Runs the built programs: exit code, stdout and stderr.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "../model/testing.h"

namespace replayssm {

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

// Output goes to files, so that no pipe can fill up. A `stdout_path` takes the output in their
// place.
inline Outcome run_program(const std::string& name, const std::vector<std::string>& arguments,
                           const std::string& stdout_path = {}) {
  const TempFolder folder;
  const std::string out = stdout_path.empty() ? folder.file("out") : stdout_path;
  const std::string err = folder.file("err");
  const std::string binary = REPLAYSSM_BINARY_DIR "/" + name;
  std::vector<char*> argv = {const_cast<char*>(binary.c_str())};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    const int flags = O_WRONLY | O_CREAT | O_TRUNC;
    if (dup2(open(out.c_str(), flags, 0600), 1) < 0) _exit(126);
    if (dup2(open(err.c_str(), flags, 0600), 2) < 0) _exit(126);
    execv(binary.c_str(), argv.data());
    _exit(127);
  }
  Outcome outcome;
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid) return outcome;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (stdout_path.empty()) outcome.out = read_text(out);
  outcome.err = read_text(err);
  return outcome;
}

inline Outcome run_binary(const std::vector<std::string>& arguments,
                          const std::string& stdout_path = {}) {
  return run_program("replayssm", arguments, stdout_path);
}

inline Outcome run_bench(const std::vector<std::string>& arguments) {
  return run_program("replayssm-bench", arguments);
}

// The arguments fail with this code and one line on stderr that holds every part.
inline void expect_program_fails(const std::string& name, int exit_code,
                                 const std::vector<std::string>& arguments,
                                 const std::vector<std::string>& parts) {
  std::string line = name + " ";
  for (const auto& argument : arguments) line += argument + " ";
  SCOPED_TRACE(line);
  const Outcome outcome = run_program(name, arguments);
  EXPECT_EQ(outcome.exit_code, exit_code);
  EXPECT_TRUE(outcome.err.starts_with(name + ": ")) << outcome.err;
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
  for (const auto& part : parts) {
    EXPECT_NE(outcome.err.find(part), std::string::npos)
        << "'" << part << "' is not in: " << outcome.err;
  }
}

inline void expect_fails(int exit_code, const std::vector<std::string>& arguments,
                         const std::vector<std::string>& parts) {
  expect_program_fails("replayssm", exit_code, arguments, parts);
}

inline void expect_bench_fails(int exit_code, const std::vector<std::string>& arguments,
                               const std::vector<std::string>& parts) {
  expect_program_fails("replayssm-bench", exit_code, arguments, parts);
}

}  // namespace replayssm
