// The log lines and the counters of requests. Outlives the app where a cancelled request's last
// numbers come late.
#pragma once

#include <functional>
#include <string>

#include "server/metrics.h"

namespace replayssm::server {

class Journal {
 public:
  // `log`: takes one line; may be empty.
  explicit Journal(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  // A request that the engine had no part in.
  void request(const std::string& route, const RequestRecord& record, bool quiet);
  // One that it had.
  void answer(const std::string& route, const RequestRecord& record);
  const Metrics& metrics() const { return metrics_; }

 private:
  void write(const RequestRecord& record) const;

  const std::function<void(const std::string&)> log_;
  Metrics metrics_;
};

}  // namespace replayssm::server
