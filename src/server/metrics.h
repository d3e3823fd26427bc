// Counters of the server's own, and Prometheus' text format of these and the engine's. What means
// the same as a metric of vLLM has its name.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/engine.h"
#include "server/answer/answer.h"
#include "server/histogram.h"

namespace replayssm::server {

class Metrics {
 public:
  // `route`: one of a fixed set, for each is a label's value.
  void request(const std::string& route, int status);
  void answer(const RequestRecord& record);
  std::string text(const std::string& model, const EngineStats& stats,
                   const MemoryReport& memory) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;
  int64_t left_ = 0;
  int64_t warnings_ = 0;
  std::array<int64_t, kFinishReasons> finished_{};
  Histogram first_token_, between_steps_, per_token_, whole_, queue_, prefill_, decode_;
};

}  // namespace replayssm::server
