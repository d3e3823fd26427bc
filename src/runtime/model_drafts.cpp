#include "runtime/model_drafts.h"

#include <algorithm>

#include "core/error.h"
#include "runtime/draft.h"

namespace replayssm {

// Of the drafts fed last time, those that the text now holds stand.
void ModelDrafts::keep_pending(const Job& job) {
  const int64_t at = n(job);
  const int64_t size = std::ssize(job.tokens);
  REPLAYSSM_CHECK(at < size, "the drafter has seen ", at, " tokens, the text has ", size);
  auto& drafts = job.text->drafts_;
  const int64_t fed = std::max<int64_t>(std::ssize(drafts) - 1, 0);
  int64_t stand = 0;
  while (stand < fed && at + stand < size - 1 &&
         job.tokens[static_cast<size_t>(at + stand)] == drafts[static_cast<size_t>(stand)]) {
    ++stand;
  }
  runner_.advance(job.text->sequence_.id(), stand);
  drafts.clear();
}

// False if there is no token to draw.
bool ModelDrafts::draw(const Job& job, const float* logits) {
  auto& drafts = job.text->drafts_;
  const auto drawn =
      sampler_.sample(logits, job.sampling, std::ssize(job.tokens) + std::ssize(drafts));
  if (drawn.status != ops::SampleStatus::kOk) return false;
  drafts.push_back(drawn.token);
  return true;
}

// How far the next pass over unseen tokens goes, of at most so many: no further than a cut point.
int64_t ModelDrafts::next_end(const Job& job, int64_t most) const {
  const int64_t at = n(job), end = std::min(at + most, std::ssize(job.tokens));
  if (runner_.limits().snapshots == 0) return end;
  return next_cut(cuts_, job.tokens, at, end).value_or(end);
}

void ModelDrafts::keep(const Job& job) {
  const int64_t at = n(job);
  if (next_cut(cuts_, job.tokens, at - 1, at)) runner_.keep(job.text->sequence_.id(), job.tokens);
}

// Feeds what the model has not seen; all of it stands. The last token gives the first draft.
void ModelDrafts::catch_up(std::span<Job> jobs, int64_t most) {
  while (most > 0) {
    windows_.clear();
    fed_.clear();
    int64_t room = std::min(most, kPrefillChunk);
    for (Job& job : jobs) {
      const int64_t at = n(job), left = std::ssize(job.tokens) - at;
      const int64_t count = next_end(job, room) - at;
      if (job.k <= 0 || count == 0) continue;
      Window window;
      window.sequence = job.text->sequence_.id();
      window.tokens = job.tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(count));
      window.prefill = true;
      window.n_logits = count == left ? 1 : 0;
      windows_.push_back(window);
      fed_.push_back(&job);
      room -= count;
      most -= count;
    }
    if (windows_.empty()) return;
    const float* logits = runner_.run(windows_);
    for (size_t i = 0; i < windows_.size(); ++i) {
      if (runner_.limits().snapshots > 0) keep(*fed_[i]);
      if (windows_[i].n_logits == 0) continue;
      if (!draw(*fed_[i], logits)) fed_[i]->k = 0;
      logits += runner_.model().spec().vocab;
    }
  }
}

void ModelDrafts::propose(std::span<Job> jobs, int64_t most_unseen) {
  const int32_t max_window = runner_.model().options().max_window;
  for (Job& job : jobs) {
    keep_pending(job);
    // Drafts lie past the last token: k - 1 of them are fed, beside the window that catches up.
    const int64_t room = runner_.limits().max_positions - std::ssize(job.tokens);
    job.k = static_cast<int32_t>(std::min<int64_t>({job.k, max_window, room}));
    // Another text may have brought the model further.
    const int64_t known = std::ssize(job.tokens) - 1;
    if (known - n(job) > max_window) runner_.resume(job.text->sequence_.id(), job.tokens, known);
  }
  catch_up(jobs, most_unseen);
  for (;;) {
    windows_.clear();
    fed_.clear();
    for (Job& job : jobs) {
      const auto& drafts = job.text->drafts_;
      if (drafts.empty() || std::ssize(drafts) >= job.k) continue;
      Window window;
      window.sequence = job.text->sequence_.id();
      window.tokens = {&drafts.back(), 1};
      window.pending = static_cast<int32_t>(drafts.size()) - 1;
      window.n_logits = 1;
      windows_.push_back(window);
      fed_.push_back(&job);
    }
    if (windows_.empty()) return;
    const float* logits = runner_.run(windows_);
    for (Job* job : fed_) {
      if (!draw(*job, logits)) job->k = 0;
      logits += runner_.model().spec().vocab;
    }
  }
}

namespace {

// One text alone.
class ModelDrafter final : public Drafter {
 public:
  ModelDrafter(std::shared_ptr<const Model> model, const Device& device,
               const ops::Context& context, int64_t max_positions,
               const ops::SamplerParams& sampling)
      : drafts_(std::move(model), device, context, ModelDrafts::limits(1, max_positions), {}),
        text_(drafts_),
        sampling_(sampling) {}

  int64_t bytes() const override { return drafts_.bytes(); }
  std::vector<int32_t> propose(std::span<const int32_t> tokens, int32_t k) override {
    ModelDrafts::Job job{&text_, tokens, k, sampling_};
    drafts_.propose({&job, 1}, std::ssize(tokens));
    return ModelDrafts::drafts(text_);
  }

 private:
  ModelDrafts drafts_;
  ModelDrafts::Text text_;
  ops::SamplerParams sampling_;
};

}  // namespace

std::unique_ptr<Drafter> make_model_drafter(std::shared_ptr<const Model> model,
                                            const Device& device, const ops::Context& context,
                                            int64_t max_positions,
                                            const ops::SamplerParams& sampling) {
  return std::make_unique<ModelDrafter>(std::move(model), device, context, max_positions, sampling);
}

}  // namespace replayssm
