// Counters of the server's own, and Prometheus' text format of these and the engine's.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/engine.h"
#include "server/answer/answer.h"

namespace replayssm::server {

class Histogram {
 public:
  void add(double seconds);
  // `name`_bucket, _sum and _count.
  void append(std::string& out, const std::string& name, const std::string& help) const;

 private:
  static constexpr std::array<double, 14> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                     0.25,  0.5,    1,     2.5,  5,     10,   60};
  std::array<int64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
};

class Metrics {
 public:
  // `route`: one of a fixed set.
  void request(const std::string& route, int status);
  void answer(const RequestRecord& record);
  std::string text(const EngineStats& stats, const MemoryReport& memory) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;
  int64_t left_ = 0;
  Histogram first_token_;
  Histogram duration_;
};

}  // namespace replayssm::server
