// Any bytes as a scheduler's trace: sizes of the pools, requests, cancels, preemptions, drafts and
// stops. Every read finds what was written for its text, nothing leaks, and every request ends.
#include "../runtime/fake_executor.h"

namespace {

class Bytes final : public replayssm::Dice {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint32_t roll(uint32_t sides) override {
    if (at_ >= size_) return next_++ * 2654435761u % sides;  // past the end: anything, but the same
    return data_[at_++] % sides;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
  uint32_t next_ = 1;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  replayssm::run_trace(bytes, static_cast<uint32_t>(std::min<size_t>(size, 400)));
  return 0;
}
