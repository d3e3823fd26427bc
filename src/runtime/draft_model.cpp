#include <algorithm>

#include "core/error.h"
#include "runtime/draft.h"

namespace replayssm {
namespace {

class ModelDrafter final : public Drafter {
 public:
  ModelDrafter(std::shared_ptr<Runner> runner, const ops::Context& context,
               const ops::SamplerParams& sampling)
      : runner_(std::move(runner)),
        sampler_(context, runner_->model().spec().vocab),
        sampling_(sampling),
        open_(*runner_),
        sequence_(open_.id()) {}

  int64_t bytes() const override {
    return runner_->model().memory().weights + runner_->state_bytes() + runner_->scratch_bytes();
  }

  std::vector<int32_t> propose(std::span<const int32_t> tokens, int32_t k) override {
    keep_pending(tokens);
    const int64_t size = static_cast<int64_t>(tokens.size());
    const int32_t max_window = runner_->model().options().max_window;
    // Drafts lie past the last token: k - 1 of them are fed, beside the window that catches up.
    k = std::min<int32_t>(
        {k, max_window, static_cast<int32_t>(runner_->limits().max_positions - size)});
    if (k <= 0) return {};
    const float* logits = catch_up(tokens);
    std::vector<int32_t>& drafts = drafts_;
    drafts.clear();
    for (;;) {
      const auto drawn =
          sampler_.sample(logits, sampling_, size + static_cast<int64_t>(drafts.size()));
      if (drawn.status != ops::SampleStatus::kOk) break;
      drafts.push_back(drawn.token);
      if (static_cast<int32_t>(drafts.size()) == k) break;
      Window window;
      window.sequence = sequence_;
      window.tokens = {&drafts.back(), 1};
      window.pending = static_cast<int32_t>(drafts.size()) - 1;
      window.n_logits = 1;
      logits = runner_->run({&window, 1});
    }
    return drafts;
  }

 private:
  // Of the drafts fed last time, those that the text now holds stand.
  void keep_pending(std::span<const int32_t> tokens) {
    const int64_t n = runner_->n(sequence_);
    REPLAYSSM_CHECK(n < static_cast<int64_t>(tokens.size()), "the drafter has seen ", n,
                    " tokens, the text has ", tokens.size());
    const size_t fed = drafts_.empty() ? 0 : drafts_.size() - 1;
    size_t stand = 0;
    while (stand < fed &&
           n + static_cast<int64_t>(stand) < static_cast<int64_t>(tokens.size()) - 1 &&
           tokens[static_cast<size_t>(n) + stand] == drafts_[stand]) {
      ++stand;
    }
    runner_->advance(sequence_, static_cast<int64_t>(stand));
    drafts_.clear();
  }

  // Feeds what the drafter has not seen; all of it stands. Returns the last token's logits.
  const float* catch_up(std::span<const int32_t> tokens) {
    const float* logits = nullptr;
    const int64_t size = static_cast<int64_t>(tokens.size());
    while (runner_->n(sequence_) < size) {
      const int64_t n = runner_->n(sequence_);
      const int64_t count = std::min(size - n, kDraftPrefillChunk);
      Window window;
      window.sequence = sequence_;
      window.tokens = tokens.subspan(static_cast<size_t>(n), static_cast<size_t>(count));
      window.prefill = true;
      window.n_logits = n + count == size ? 1 : 0;
      logits = runner_->run({&window, 1});
    }
    return logits;
  }

  std::shared_ptr<Runner> runner_;
  ops::Sampler sampler_;
  ops::SamplerParams sampling_;
  OpenSequence open_;
  int32_t sequence_;
  std::vector<int32_t> drafts_;  // the last proposal; all but the last of it were fed
};

}  // namespace

std::unique_ptr<Drafter> make_model_drafter(std::shared_ptr<const Model> model,
                                            const ops::Context& context, int64_t max_positions,
                                            const ops::SamplerParams& sampling) {
  const RunnerLimits limits{1, max_positions, kDraftPrefillChunk, 1};
  return make_model_drafter(std::make_shared<Runner>(std::move(model), context, limits), context,
                            sampling);
}

std::unique_ptr<Drafter> make_model_drafter(std::shared_ptr<Runner> runner,
                                            const ops::Context& context,
                                            const ops::SamplerParams& sampling) {
  return std::make_unique<ModelDrafter>(std::move(runner), context, sampling);
}

}  // namespace replayssm
