// A trace in Chrome's format (chrome://tracing, Perfetto): spans of the engine's steps and of
// requests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

namespace replayssm {

class Trace {
 public:
  // Empty: nothing is written. Throws Error if the file cannot be made.
  explicit Trace(const std::string& file);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  bool on() const { return file_ != nullptr; }
  // Seconds since the trace began.
  double now() const;
  // `args` is a JSON object. Track 0 holds the steps, others what they are given for.
  void span(const std::string& name, int64_t track, double from, double to,
            const std::string& args);
  void flush();

 private:
  std::FILE* file_ = nullptr;
  double start_ = 0;
  bool first_ = true;
};

}  // namespace replayssm
