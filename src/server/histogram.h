// Counts of durations, in the buckets that all of this server's histograms share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace replayssm::server {

class Histogram {
 public:
  static constexpr std::array<double, 23> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
      0.75,  1,      2.5,   5,    10,    20,   40,    80,  160,  640, 2560};

  void add(double seconds) {
    size_t i = 0;
    while (i < kBounds.size() && seconds > kBounds[i]) ++i;
    ++counts_[i];
    sum_ += seconds;
  }
  void add(const Histogram& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    sum_ += other.sum_;
  }
  // The last one counts what is beyond all bounds.
  const std::array<int64_t, kBounds.size() + 1>& counts() const { return counts_; }
  double sum() const { return sum_; }

 private:
  std::array<int64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
};

}  // namespace replayssm::server
