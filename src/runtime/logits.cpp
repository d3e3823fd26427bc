#include "runtime/logits.h"

#include <algorithm>
#include <random>
#include <utility>

#include "core/error.h"
#include "core/memory.h"

namespace replayssm {
namespace {

class LogitsRun {
 public:
  LogitsRun(Runner& runner, std::span<const int32_t> ids)
      : runner_(runner),
        sequence_(runner),
        ids_(ids),
        vocab_(runner.model().spec().vocab),
        logits_(ids.size() * static_cast<size_t>(vocab_)) {}

  std::vector<float> take() { return std::move(logits_); }

  void prefill() {
    while (n() < size()) {
      const int64_t most = std::min(runner_.limits().max_tokens, runner_.limits().max_logits);
      const int64_t count = std::min(size() - n(), most);
      feed(tokens(n(), count), count, /*prefill=*/true);
    }
  }

  void decode() {
    while (n() < size()) {
      feed(tokens(n(), 1), 1, /*prefill=*/false);
      runner_.advance(sequence_.id(), 1);
    }
  }

  void verify(int32_t window, uint64_t seed) {
    std::mt19937_64 rng(seed);
    while (n() < size()) {
      const int64_t count = std::min<int64_t>(window, size() - n());
      const int64_t accepted = static_cast<int64_t>(rng() % static_cast<uint64_t>(count + 1));
      const auto right = tokens(n(), count);
      std::vector<int32_t> fed(right.begin(), right.end());
      for (int64_t i = accepted; i < count; ++i) {
        fed[static_cast<size_t>(i)] = wrong(fed[static_cast<size_t>(i)], rng);
      }
      feed(fed, accepted, /*prefill=*/false);
      runner_.advance(sequence_.id(), accepted);
      if (accepted == count) continue;
      feed(tokens(n(), count - accepted), count - accepted, /*prefill=*/false);
      runner_.advance(sequence_.id(), count - accepted);
    }
  }

 private:
  int64_t n() const { return runner_.n(sequence_.id()); }
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  std::span<const int32_t> tokens(int64_t from, int64_t count) const {
    return ids_.subspan(static_cast<size_t>(from), static_cast<size_t>(count));
  }
  // Another id, if the vocabulary has one.
  int32_t wrong(int32_t id, std::mt19937_64& rng) const {
    const uint64_t shift = vocab_ > 1 ? 1 + rng() % static_cast<uint64_t>(vocab_ - 1) : 0;
    return static_cast<int32_t>((id + static_cast<int64_t>(shift)) % vocab_);
  }

  // Feeds ids at n and keeps the logits of the first `right` of them.
  void feed(std::span<const int32_t> ids, int64_t right, bool prefill) {
    const int64_t at = n();
    Window window;
    window.sequence = sequence_.id();
    window.tokens = ids;
    window.prefill = prefill;
    window.n_logits = static_cast<int32_t>(ids.size());
    const float* rows = runner_.run({&window, 1});
    std::copy(rows, rows + right * vocab_, logits_.begin() + at * vocab_);
  }

  Runner& runner_;
  OpenSequence sequence_;
  std::span<const int32_t> ids_;
  int64_t vocab_;
  std::vector<float> logits_;
};

}  // namespace

std::vector<float> logits_of(Runner& runner, std::span<const int32_t> ids,
                             const LogitsParams& params) {
  check_text("the text", ids, runner.model().spec().vocab, runner.limits().max_positions);
  check_memory(static_cast<double>(ids.size()) * static_cast<double>(runner.model().spec().vocab) *
                   sizeof(float),
               concat("logits at ", ids.size(), " positions"));
  LogitsRun run(runner, ids);
  switch (params.mode) {
    case LogitsMode::kPrefill:
      run.prefill();
      break;
    case LogitsMode::kDecode:
      run.decode();
      break;
    case LogitsMode::kVerify:
      REPLAYSSM_CHECK(params.window > 0, "window ", params.window);
      run.verify(params.window, params.reject_seed);
      break;
  }
  return run.take();
}

}  // namespace replayssm
