#include "runtime/host_tier.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <random>

namespace replayssm {
namespace {

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// States of many sizes that come and go, some used again and so kept for long: what they occupy is
// what is counted against the cap.
TEST(HostTier, OccupiesWhatItCounts) {
  constexpr int64_t kMost = 64 << 20;
  HostTier tier(kMost);
  std::mt19937 random(1);
  const int64_t before = resident_bytes();
  for (int32_t i = 0; i < 1000; ++i) {
    SnapshotFile file;
    file.tokens.assign(16 + random() % 500, i);
    file.position = std::ssize(file.tokens);
    file.state.resize((100 << 10) + random() % (1 << 20), std::byte{1});
    tier.keep(std::move(file), [](const SnapshotFile&) {});
    const size_t n = tier.all().size();
    const std::vector<int32_t> again =
        (*std::next(tier.all().begin(), static_cast<int64_t>(random() % n)))->tokens;
    EXPECT_TRUE(tier.use(again));
  }
  EXPECT_GT(tier.bytes(), kMost - (2 << 20));
  EXPECT_LT(resident_bytes() - before, tier.bytes() + (4 << 20));
}

}  // namespace
}  // namespace replayssm
