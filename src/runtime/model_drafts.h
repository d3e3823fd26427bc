// Drafts of a second, smaller model for many texts: their passes are shared. Its states are rolled
// back as the target's are, and it draws with the same generator at the same position. What it has
// read of a text up to a cut point, it need not read again for the next, as long as the memory for
// its snapshots lasts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/sample.h"
#include "runtime/cut_points.h"
#include "runtime/runner.h"

namespace replayssm {

class ModelDrafts {
 public:
  // Longest pass over tokens that the model has not seen.
  static constexpr int64_t kPrefillChunk = 256;
  static RunnerLimits limits(int32_t max_texts, int64_t max_positions) {
    return {max_texts, max_positions, std::max<int64_t>(kPrefillChunk, max_texts), max_texts};
  }

  // The context, which draws, must outlive it. Limits as limits() has them, perhaps with memory for
  // snapshots.
  ModelDrafts(std::shared_ptr<const Model> model, const Device& device, const ops::Context& context,
              const RunnerLimits& limits, const CutRule& cuts)
      : runner_(std::move(model), device, limits),
        cuts_(cuts),
        sampler_(context, runner_.model().spec().vocab) {}

  // A text that is drafted for: what it holds goes with it.
  class Text {
   public:
    explicit Text(ModelDrafts& drafts) : sequence_(drafts.runner_) {}

   private:
    friend class ModelDrafts;
    OpenSequence sequence_;
    std::vector<int32_t> drafts_;  // the last proposal; all but the last of it were fed
  };

  struct Job {
    Text* text = nullptr;
    std::span<const int32_t> tokens;  // go on from those of the text's last job
    int32_t k = 0;
    ops::SamplerParams sampling;
  };
  // Up to k drafts for each job, of different texts; they last until the text's next job. Of tokens
  // that it has not seen the model reads at most `most_unseen`, in the order of the jobs: texts
  // that it has not read to their ends get no drafts yet.
  void propose(std::span<Job> jobs, int64_t most_unseen);
  static const std::vector<int32_t>& drafts(const Text& text) { return text.drafts_; }

  // Drops all snapshots.
  void forget() { runner_.forget(); }

  int64_t bytes() const {
    return runner_.memory().weights + runner_.state_bytes() + runner_.scratch_bytes();
  }

 private:
  void keep_pending(const Job& job);
  void catch_up(std::span<Job> jobs, int64_t most);
  int64_t next_end(const Job& job, int64_t most) const;
  void keep(const Job& job);
  bool draw(const Job& job, const float* logits);
  int64_t n(const Job& job) const { return runner_.n(job.text->sequence_.id()); }

  Runner runner_;
  CutRule cuts_;
  ops::Sampler sampler_;
  std::vector<Window> windows_;  // of the pass at hand
  std::vector<Job*> fed_;        // whose they are
};

}  // namespace replayssm
