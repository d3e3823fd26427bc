#include "runtime/trace.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace replayssm {
namespace {

double clock_seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

}  // namespace

Trace::Trace(const std::string& file) : start_(clock_seconds()) {
  if (file.empty()) return;
  file_ = std::fopen(file.c_str(), "w");
  if (file_ == nullptr) fail("cannot write the trace file ", file);
  std::fputs("[\n", file_);
}

Trace::~Trace() {
  if (file_ == nullptr) return;
  std::fputs("\n]\n", file_);
  std::fclose(file_);
}

double Trace::now() const { return clock_seconds() - start_; }

void Trace::span(const std::string& name, int64_t track, double from, double to,
                 const std::string& args) {
  if (file_ == nullptr) return;
  const std::string quoted =
      nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::fprintf(file_,
               "%s{\"name\": %s, \"ph\": \"X\", \"pid\": 1, \"tid\": %lld, \"ts\": %.3f, "
               "\"dur\": %.3f, \"args\": %s}",
               first_ ? "" : ",\n", quoted.c_str(), static_cast<long long>(track), 1e6 * from,
               1e6 * (to - from), args.c_str());
  first_ = false;
}

void Trace::flush() {
  if (file_ != nullptr) std::fflush(file_);
}

}  // namespace replayssm
