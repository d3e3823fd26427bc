#include "model/load_progress.h"

#include <unistd.h>

#include <cstdio>

namespace replayssm {
namespace {

constexpr std::chrono::milliseconds kQuiet{1000}, kEvery{200};

}  // namespace

std::string progress_text(int64_t done, int64_t total, double seconds) {
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0.0;
  char text[128];
  std::snprintf(text, sizeof(text), "loading %.1f of %.1f GB, %.2f GB/s",
                static_cast<double>(done) / 1e9, static_cast<double>(total) / 1e9, rate / 1e9);
  std::string out = text;
  if (rate > 0) {
    std::snprintf(text, sizeof(text), ", %.0f s left", static_cast<double>(total - done) / rate);
    out += text;
  }
  return out;
}

LoadProgress::LoadProgress(int64_t total)
    : total_(total), next_(start_ + kQuiet), terminal_(isatty(STDERR_FILENO) == 1) {}

LoadProgress::~LoadProgress() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void LoadProgress::show(int64_t done) {
  const Clock::time_point now = Clock::now();
  if (!terminal_ || now < next_) return;
  next_ = now + kEvery;
  shown_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  std::fprintf(stderr, "\r\033[K%s", progress_text(done, total_, seconds).c_str());
}

}  // namespace replayssm
