// How far a load is, as one line on stderr where that is a terminal and the load takes a while.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace replayssm {

// "loading 3.2 of 8.4 GB, 1.07 GB/s, 5 s left"
std::string progress_text(int64_t done, int64_t total, double seconds);

class LoadProgress {
 public:
  explicit LoadProgress(int64_t total);
  ~LoadProgress();  // takes the line away
  LoadProgress(const LoadProgress&) = delete;
  LoadProgress& operator=(const LoadProgress&) = delete;

  void show(int64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  int64_t total_;
  Clock::time_point start_ = Clock::now(), next_;
  bool terminal_, shown_ = false;
};

}  // namespace replayssm
